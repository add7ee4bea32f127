"""DraftStats and Monitor: counts that add up, and one warning."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pydflash.draft.base import DraftRow, DraftScores
from pydflash.spec.cost import CostModel
from pydflash.spec.monitor import ROUNDS, Monitor
from pydflash.spec.policy import Policy, Settings
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Outcome, Spent
from pydflash.spec.speculator import Speculator
from pydflash.spec.stats import DraftStats

TREE = Proposal((9, 1, 2, 3), (-1, 0, 0, 1), (0, 1, 1, 2))


def filled() -> DraftStats:
    stats = DraftStats()
    stats.add(TREE, 3, drafted=True, draft_s=1.0, step_s=3.0, reference_s=2.0)
    stats.add(TREE, 2, drafted=True, draft_s=1.0, step_s=3.0, reference_s=2.0)
    stats.add(Proposal.root(9), 1, drafted=False, step_s=2.0, reference_s=2.0)
    return stats


def test_counts_rounds_nodes_depths_and_seconds() -> None:
    stats = filled()
    assert (stats.rounds, stats.plain_rounds, stats.tokens) == (3, 1, 6)
    assert (stats.nodes, stats.accepted_nodes) == (6, 3)
    assert (stats.offered, stats.accepted) == ([2, 2], [2, 1])
    assert stats.depth_rates == [1.0, 0.5]
    assert stats.acceptance_length == pytest.approx(2.0)
    assert stats.round_cost == pytest.approx(10 / 6)
    assert stats.draft_share == pytest.approx(0.2)
    assert stats.speedup == pytest.approx(1.2)


def test_says_it_in_a_line() -> None:
    assert filled().line() == (
        "2.00 tokens/round, 3 rounds (1 plain), 3 of 6 drafted accepted, round 1.67 steps (draft 20%)"
    )
    assert DraftStats().line() == "no round yet"
    plain = DraftStats()
    plain.add(Proposal.root(1), 1, drafted=False)
    assert plain.line() == "1.00 tokens/round, 1 rounds (1 plain)"


def test_nothing_divides_by_nothing() -> None:
    stats = DraftStats()
    assert stats.acceptance_length == stats.round_cost == stats.draft_share == stats.speedup == 0.0
    stats.add(Proposal.root(1), 0, drafted=True)  # the draw failed
    assert (stats.tokens, stats.accepted_nodes) == (0, 0)


def test_merging_is_adding() -> None:
    total = DraftStats()
    other = DraftStats()
    other.add(Proposal.chain([1, 2, 3, 4]), 4, drafted=True, draft_s=0.5, step_s=1.0)
    for part in (filled(), other):
        total.merge(part)
    assert (total.offered, total.accepted) == ([3, 3, 1], [3, 2, 1])
    assert (total.rounds, total.tokens, total.nodes) == (4, 10, 9)
    assert total.draft_s == pytest.approx(2.5)
    assert total.step_s == pytest.approx(9.0)
    assert total.reference_s == pytest.approx(6.0)


def watch(claim: float, rate: float, rounds: int, seed: int = 0) -> list[str]:
    dice = random.Random(seed)
    scores = DraftScores(
        tokens=np.array([[5, 6]], np.int32), logp=np.log([[claim, claim / 2]]).astype(np.float32)
    )
    monitor = Monitor("some.gguf")
    said = [monitor.observe(scores, [5 if dice.random() < rate else 7]) for _ in range(rounds)]
    return [s for s in said if s is not None]


@pytest.mark.parametrize(("claim", "rate"), [(0.6, 0.0), (0.6, 0.03), (0.95, 0.08), (0.3, 0.0)])
def test_a_drafter_that_does_not_fit_is_named_once(claim: float, rate: float) -> None:
    said = watch(claim, rate, 1000)
    assert len(said) == 1
    assert "some.gguf" in said[0]
    assert f"{claim:.0%}" in said[0]
    assert watch(claim, rate, ROUNDS - 1) == []


@pytest.mark.parametrize(("claim", "rate"), [(0.6, 0.5), (0.9, 0.5), (0.3, 0.15), (0.05, 0.02)])
def test_a_drafter_that_fits_is_left_alone(claim: float, rate: float) -> None:
    for seed in range(5):
        assert watch(claim, rate, 500, seed) == []


def test_no_draft_proves_nothing() -> None:
    monitor = Monitor("x")
    scores = DraftScores(tokens=np.array([[5]], np.int32), logp=np.zeros((1, 1), np.float32))
    for _ in range(200):
        assert monitor.observe(DraftScores.nothing(), [1]) is None
        assert monitor.observe(scores, []) is None


def test_conditional_scores_are_judged_by_their_best_pair() -> None:
    pair = np.log(np.full((1, 2, 2), 0.05, np.float32))
    pair[0, :, 1] = np.log(0.9)
    tokens = np.array([[5, 6]], np.int32)
    scores = DraftScores(tokens=tokens, logp=pair[:, 0], pair=pair)
    right, wrong = Monitor("x"), Monitor("x")
    assert all(right.observe(scores, [6]) is None for _ in range(200))
    assert sum(wrong.observe(scores, [5]) is not None for _ in range(200)) == 1


@pytest.mark.parametrize("taps", [(), (3,)])
def test_only_trained_drafters_are_judged(
    taps: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A look-up is made for no model: where the text has no repetitions it is just of no use."""

    class Wrong:
        name, slots = "some.gguf", 1

        def __init__(self) -> None:
            self.taps = taps

        def catch_up(self, contexts: object) -> None: ...

        def score(self, rows: Sequence[DraftRow], slots: int, top_k: int) -> list[DraftScores]:
            logp = np.log([[0.9]]).astype(np.float32)
            return [DraftScores(tokens=np.array([[5]], np.int32), logp=logp) for _ in rows]

        def start(
            self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
        ) -> None: ...

    cost = CostModel()
    cost.profile([(1, 0, 1.0), (2, 0, 1.1), (8, 0, 1.6)], [(1, 1, 0.1)])
    settings = Settings(mode="tree", max_slots=1, max_nodes=2, budget=1)
    speculator = Speculator(Wrong(), Policy(settings, cost))
    for _ in range(2 * ROUNDS):
        (proposal,) = speculator.propose([DraftRow(tokens=[1, 2])])
        outcome = Outcome(
            proposal=proposal,
            rows=len(proposal.tokens),
            position=1,
            path=[0],
            drawn=[7],
            stats=DraftStats(),
        )
        speculator.settle([], [outcome], Spent(draft_s=0.1, step_s=1.0, rows=2, prefill=0))
    assert ("does not fit" in caplog.text) == bool(taps)
