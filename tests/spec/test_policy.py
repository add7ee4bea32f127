"""Policy: what it makes of synthetic drafters, and the bounds it keeps."""

import math

import numpy as np
import pytest

from pydflash.draft.base import DraftScores
from pydflash.spec.cost import CostModel
from pydflash.spec.ddtree import build_tree
from pydflash.spec.policy import PACE, Policy, Settings
from pydflash.spec.proposal import Proposal
from tests.spec import synthetic
from tests.spec.synthetic import OTHER, Decoding, Regime, adaptive, best_fixed, cost_model


def sure(p: float, slots: int = 8, k: int = 4) -> DraftScores:
    """The first candidate of every slot has probability p, the others share half of the rest."""
    row = [p] + [(1 - p) / 2 / (k - 1)] * (k - 1)
    tokens = 100 * np.arange(1, slots + 1, dtype=np.int32)[:, None] + np.arange(k, dtype=np.int32)
    return DraftScores(tokens=tokens, logp=np.log(np.tile(row, (slots, 1))).astype(np.float32))


@pytest.mark.parametrize("name", ["CODE", "GOOD", "FAIR"])
def test_nearly_as_fast_as_the_best_fixed_budget(name: str) -> None:
    regime: Regime = getattr(synthetic, name)
    best = best_fixed(regime, 1000)
    assert best > 1.1
    assert Decoding(adaptive(), seed=1).run(regime, 1000) > 0.9 * best


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("name", ["USELESS", "BOASTFUL", "SHY", "POOR"])
def test_a_drafter_that_does_not_pay_costs_little(name: str, sequences: int) -> None:
    decoding = Decoding(adaptive(), sequences)
    tokens = 800 if name == "POOR" else 2000  # more rounds of it draft
    assert decoding.run(getattr(synthetic, name), tokens) > 0.97
    assert name == "POOR" or decoding.plain_rounds > 0.8 * decoding.rounds


def test_a_useless_drafter_is_cheap_in_the_long_run() -> None:
    decoding = Decoding(adaptive())
    decoding.run(synthetic.USELESS, 1000)
    assert decoding.run(synthetic.USELESS, 3000) > 0.98


def test_it_follows_the_text() -> None:
    decoding = Decoding(adaptive())
    steady = Decoding(adaptive()).run(synthetic.GOOD, 1200)
    assert steady > 1.6
    speeds = [
        decoding.run((synthetic.GOOD, synthetic.USELESS)[i % 2], 800 if i % 2 else 1200)
        for i in range(4)
    ]
    assert min(speeds[1], speeds[3]) > 0.93
    assert speeds[2] > 0.75 * steady
    last = decoding.plain_rounds
    decoding.run(synthetic.GOOD, 600)
    drafting = decoding.plain_rounds - last
    decoding.run(synthetic.GOOD, 600)
    assert decoding.plain_rounds - last - drafting < 30, "predictable text is drafted"


def test_a_cheap_drafter_that_seldom_speaks_is_asked_again_and_again() -> None:
    policy = adaptive()
    policy.cost.profile([], [(s, 1, 0.0002) for s in (1, 15)])
    dice = np.random.default_rng(0)
    heard = spoken = 0
    for _ in range(1500):
        speaks = dice.random() < 0.04
        spoken += speaks
        slots = policy.slots()
        scores = [sure(0.9) if speaks and slots else DraftScores.nothing()] * (slots > 0)
        rows, drawn = 1, [OTHER]
        if slots and speaks:
            heard += 1
            rows = len(policy.trees([0], scores)[0].tokens)
            drawn = [100, 200, 300, OTHER]
            assert heard < 20 or rows > 3
        elif slots:
            policy.trees([0], scores)
        policy.observe(
            scores,
            [drawn],
            rows=rows,
            slots=slots,
            draft_s=0.0002 if slots else None,
            step_s=synthetic.step_s(rows),
        )
    assert heard > 0.8 * spoken


def test_slots_follow_the_depth_that_pays() -> None:
    slots = {}
    for name in ("CODE", "FAIR"):
        policy = adaptive()
        Decoding(policy).run(getattr(synthetic, name), 1000)
        policy._drafted += policy._drafted % 12 == 0  # not the round that looks at every slot
        slots[name] = policy.slots()
    assert 1 <= slots["FAIR"] < slots["CODE"] <= 15


def test_trees_keep_to_their_limits() -> None:
    policy = Policy(Settings(max_nodes=6, max_rows=12), CostModel())
    policy.cost.profile([(1, 0, 1.0), (64, 0, 1.001)])  # rows cost nothing
    for limits in (None, [4, 1, 9]):
        trees = policy.trees([1, 2, 3], [sure(0.9), sure(0.8), sure(0.7)], limits)
        counts = [len(t.tokens) for t in trees]
        assert [t.tokens[0] for t in trees] == [1, 2, 3]
        most = limits or [6, 6, 6]
        assert all(n <= min(6, m) for n, m in zip(counts, most, strict=True))
        assert sum(counts) <= 12
    assert counts[1] == 1
    assert sum(counts) == 11


def test_the_likelier_row_gets_the_nodes() -> None:
    policy = adaptive()
    trees = policy.trees([1, 2], [sure(0.95), sure(0.1)])
    assert len(trees[0].tokens) > 2
    assert trees[1] == Proposal.root(2)


def test_growth_stops_where_a_row_costs_more_than_it_gives() -> None:
    for row_cost in (0.02, 0.2, 0.45):
        policy = Policy(Settings(), CostModel())
        policy.cost.profile([(1, 0, 1.0), (101, 0, 1.0 + 100 * row_cost)])
        given = sure(0.8)
        tree = policy.trees([0], [given])[0]
        size = len(tree.tokens)
        wider = build_tree(0, given, size, top_k=8, chain_seed=False)
        assert tree == build_tree(0, given, size - 1, top_k=8, chain_seed=False)
        weights = [0.8 ** wider.depth[n] for n in range(1, size) if wider.tokens[n] % 100 == 0]
        assert min(weights) > row_cost


def test_growth_looks_over_an_edge_of_the_cost() -> None:
    policy = Policy(Settings(), CostModel())
    # One row more costs 90% of a step; the seven rows behind it cost nothing.
    policy.cost.profile([(1, 0, 1.0), (2, 0, 1.9), (8, 0, 1.9), (9, 0, 9.0)])
    assert len(policy.trees([0], [sure(0.8)])[0].tokens) == 8


def test_rows_beside_are_not_charged_to_drafting() -> None:
    """Steps of eight rows that take no drafts: what drafting cost is what its own rows added."""
    policy = adaptive()
    policy.observe([sure(0.9)], [[100, OTHER]], rows=4 + 8, slots=8, beside=8)
    steps = (synthetic.draft_s(8) + policy.cost.step_s(12)) / policy.cost.step_s(9)
    assert policy.speed == pytest.approx((1 + PACE) / (1 + PACE * (steps - 1)))
    plain = adaptive()
    plain.observe([], [[OTHER]], rows=9, beside=8)
    assert plain.speed == 1.0


def test_growth_begins_after_the_rows_beside() -> None:
    policy = Policy(Settings(max_nodes=20), CostModel())
    # Dear up to eight rows, then an edge behind which rows cost nothing.
    policy.cost.profile([(1, 0, 1.0), (8, 0, 12.0), (9, 0, 12.0), (40, 0, 12.001)])
    assert len(policy.trees([0], [sure(0.8)])[0].tokens) == 1
    assert len(policy.trees([0], [sure(0.8)], beside=8)[0].tokens) > 4


def test_fixed_modes_build_the_heaviest_trees_or_the_seeds() -> None:
    given = [sure(0.6), sure(0.5)]
    for seeded in (False, True):
        tree = Policy(Settings(mode="tree", budget=13, tau=4.0, chain_seed=seeded), cost_model())
        assert tree.slots() == 15
        assert tree.trees([1, 2], given) == [
            build_tree(r, g, 13, tau=4.0, chain_seed=seeded)
            for r, g in zip([1, 2], given, strict=True)
        ]
    few = Policy(Settings(mode="tree", budget=4), cost_model()).trees([1], given[1:])[0]
    assert few == build_tree(1, given[1], 4, top_k=8, chain_seed=False)
    assert len(few.tokens) == 5
    unsure = Policy(Settings(mode="tree", budget=4), cost_model()).trees([1], [sure(0.3)])[0]
    assert not unsure.is_chain, "a budget below the slots is no reason for a chain"
    chain = Policy(Settings(mode="chain", max_slots=5), cost_model())
    assert chain.slots() == 5
    assert all(t.is_chain and len(t.tokens) == 9 for t in chain.trees([1, 2], given))
    assert [len(t.tokens) for t in chain.trees([1, 2], given, [3, 1])] == [3, 1]
    assert Policy(Settings(max_slots=0), cost_model()).slots() == 0


def test_works_before_anything_was_measured() -> None:
    policy = Policy(Settings(max_slots=8), CostModel())
    assert policy.slots() == 8
    trees = policy.trees([1], [sure(0.9)])
    assert 1 < len(trees[0].tokens) <= 48
    policy.observe([sure(0.9)], [[100, OTHER]], rows=9, slots=8)
    policy.observe([sure(0.9)], [[100, OTHER]], rows=9, slots=8, draft_s=0.002, step_s=0.02)
    policy.observe([], [], rows=0)
    assert policy.slots() >= 1
    assert policy.trees([1], [DraftScores.nothing()]) == [Proposal.root(1)]
    assert math.isfinite(policy.speed)


def test_is_a_function_of_what_it_is_told() -> None:
    runs = []
    for _ in range(2):
        decoding = Decoding(adaptive(), 2, seed=3)
        decoding.run(synthetic.GOOD, 300)
        runs.append((decoding.widths, decoding.seconds))
    assert runs[0] == runs[1]
