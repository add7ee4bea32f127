"""build_tree: the heaviest prefixes, against enumeration of all of them."""

import itertools
import math
import random

import numpy as np
import pytest

from pydflash.draft.base import DraftScores
from pydflash.errors import ConfigError
from pydflash.spec.ddtree import NONE_LEFT, Growth, build_tree, tempered
from pydflash.spec.proposal import Proposal

ROOT = 999

Path = tuple[int, ...]


def marginal(slots: int, k: int, seed: int, *, sharp: float = 1.5) -> DraftScores:
    dice = np.random.default_rng(seed)
    logits = np.sort(dice.normal(0, sharp, (slots, k + 4)))[:, ::-1]
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    tokens = np.stack([dice.permutation(50)[:k] for _ in range(slots)])
    return DraftScores(tokens=tokens.astype(np.int32), logp=logp[:, :k].astype(np.float32))


def conditional(slots: int, k: int, seed: int) -> DraftScores:
    plain = marginal(slots, k, seed)
    dice = np.random.default_rng(seed + 1000)
    logits = dice.normal(0, 1.5, (slots, k, k + 2))
    logits[0] = logits[0, :1]
    pair = (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[:, :, :k]
    return DraftScores(tokens=plain.tokens, logp=plain.logp, pair=pair.astype(np.float32))


def every_prefix(scores: DraftScores) -> dict[Path, float]:
    """Token path and weight of every prefix of every depth."""
    out: dict[Path, float] = {}
    slots, k = scores.tokens.shape
    for depth in range(1, slots + 1):
        for ranks in itertools.product(range(k), repeat=depth):
            weight, before = 0.0, 0
            for slot, rank in enumerate(ranks):
                table = scores.logp[slot] if scores.pair is None else scores.pair[slot, before]
                weight, before = weight + float(table[rank]), rank
            out[tuple(int(scores.tokens[s, r]) for s, r in enumerate(ranks))] = weight
    return out


def paths(tree: Proposal) -> list[Path]:
    return [tuple(tree.tokens[i] for i in tree.path(n)[1:]) for n in range(1, len(tree.tokens))]


def heaviest(scores: DraftScores, count: int) -> list[Path]:
    weights = every_prefix(scores)
    return sorted(weights, key=lambda p: -weights[p])[:count]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", [marginal, conditional])
def test_the_heaviest_prefixes_make_the_tree(form: type, seed: int) -> None:
    scores = form(4, 3, seed)
    weights = every_prefix(scores)
    for budget in (1, 2, 5, 11, 30, 119, 120):
        tree = build_tree(ROOT, scores, budget, top_k=3, chain_seed=False)
        found = paths(tree)
        assert sorted(found) == sorted(heaviest(scores, budget))
        assert [weights[p] for p in found] == sorted((weights[p] for p in found), reverse=True)
        assert tree.tokens[0] == ROOT


@pytest.mark.parametrize("form", [marginal, conditional])
def test_a_budget_beyond_all_prefixes_takes_all(form: type) -> None:
    assert len(build_tree(ROOT, form(3, 2, 0), 1000, top_k=2).tokens) == 1 + 2 + 4 + 8


@pytest.mark.parametrize("form", [marginal, conditional])
def test_the_chain_seed_adds_the_best_path_then_the_heaviest_rest(form: type) -> None:
    for seed in range(6):
        scores = form(4, 3, seed)
        weights = every_prefix(scores)
        chain = build_tree(ROOT, scores, 4, top_k=1)
        spine = paths(chain)
        assert chain.is_chain
        if scores.pair is None:
            assert spine[-1] == tuple(scores.tokens[:, 0].tolist())
        for budget in (5, 9, 20):
            tree = build_tree(ROOT, scores, budget, top_k=3)
            rest = [p for p in sorted(weights, key=lambda p: -weights[p]) if p not in spine]
            assert paths(tree)[:4] == spine
            assert sorted(paths(tree)[4:]) == sorted(rest[: budget - 4])


def test_a_larger_tree_holds_the_smaller_and_weights_are_its_paths() -> None:
    scores = marginal(6, 8, 3)
    growth = Growth(ROOT, scores)
    while len(growth) < 65:
        ahead = growth.peek
        assert growth.take() == ahead
    for n in (1, 2, 17, 64):
        small, large = growth.proposal(n), growth.proposal(n + 1)
        assert large.tokens[:n] == small.tokens
        assert large.parents[:n] == small.parents
    assert growth.proposal().tokens == build_tree(ROOT, scores, 64, chain_seed=False).tokens
    assert growth.weights[1:] == sorted(growth.weights[1:], reverse=True)
    tree = growth.proposal()
    for node in range(1, len(growth)):
        table = dict(
            zip(scores.tokens[tree.depth[node] - 1], scores.logp[tree.depth[node] - 1], strict=True)
        )
        step = growth.weights[node] - growth.weights[tree.parents[node]]
        assert step == pytest.approx(float(table[tree.tokens[node]]), abs=1e-5)


def test_siblings_differ_and_parents_precede() -> None:
    for seed in range(4):
        tree = build_tree(ROOT, conditional(5, 6, seed), 60, top_k=4)
        assert all(p < i for i, p in enumerate(tree.parents))
        edges = list(zip(tree.parents, tree.tokens, strict=True))
        assert len(set(edges)) == len(edges)
        assert max(tree.parents.count(p) for p in set(tree.parents)) <= 4


def test_a_budget_of_no_more_than_the_slots_is_a_chain_by_default() -> None:
    scores = marginal(5, 8, 1)
    assert build_tree(ROOT, scores, 3) == Proposal.chain([ROOT, *scores.tokens[:3, 0].tolist()])
    assert build_tree(ROOT, scores, 5).is_chain
    assert not build_tree(ROOT, scores, 6).is_chain
    assert build_tree(ROOT, scores, 40, top_k=1) == build_tree(ROOT, scores, 5)


def test_tau_cuts_what_is_lighter_than_the_best_first_node() -> None:
    scores = marginal(4, 4, 2)
    weights = every_prefix(scores)
    best = float(scores.logp[0, 0])
    for tau in (0.0, 0.7, 2.0, 5.0):
        kept = {p for p, w in weights.items() if best - w <= tau}
        for seeded in (True, False):
            tree = build_tree(ROOT, scores, 10**6, top_k=4, tau=tau, chain_seed=seeded)
            assert set(paths(tree)) == kept
    assert build_tree(ROOT, scores, 50, tau=-3.0) == build_tree(ROOT, scores, 50, tau=0.0)


def test_nothing_to_offer_is_the_root_alone() -> None:
    for budget in (0, -4):
        assert build_tree(ROOT, marginal(4, 3, 0), budget) == Proposal.root(ROOT)
    assert build_tree(ROOT, DraftScores.nothing(), 8) == Proposal.root(ROOT)
    assert Growth(ROOT, DraftScores.nothing()).peek == NONE_LEFT


def test_impossible_candidates_are_never_offered() -> None:
    pair = np.full((2, 2, 2), NONE_LEFT, np.float32)
    pair[0, :, 1] = pair[1, 1, 0] = 0.0
    tokens = np.array([[5, 6], [7, 8]], np.int32)
    scores = DraftScores(tokens=tokens, logp=np.zeros((2, 2), np.float32), pair=pair)
    for seeded in (True, False):
        tree = build_tree(ROOT, scores, 9, top_k=2, chain_seed=seeded)
        assert tree == Proposal.chain([ROOT, 6, 7])


def test_off_path_scores_apply_below_siblings_only() -> None:
    tokens = np.array([[1, 2], [3, 4]], np.int32)
    logp = np.log(np.array([[0.6, 0.3], [0.9, 0.05]], np.float32))
    growth = Growth(ROOT, DraftScores(tokens=tokens, logp=logp), off=logp - math.log(4))
    while growth.peek > NONE_LEFT:
        growth.take()
    tree = growth.proposal()
    found = dict(zip(paths(tree), np.exp(growth.weights[1:]).tolist(), strict=True))
    assert found[(1, 3)] == pytest.approx(0.54)
    assert found[(2, 3)] == pytest.approx(0.3 * 0.9 / 4)


def test_temperature_is_that_of_the_logits() -> None:
    dice = np.random.default_rng(0)
    logits = np.sort(dice.normal(0, 2, (3, 5)))[:, ::-1]
    for temperature in (0.5, 1.0, 2.0):
        at = logits / temperature
        want = at - np.log(np.exp(at).sum(-1, keepdims=True))
        full = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        tokens = np.tile(np.arange(5, dtype=np.int32), (3, 1))
        for k in (5, 4):  # all tokens, and all but one: both leave nothing unknown
            scores = DraftScores(tokens=tokens[:, :k], logp=full[:, :k].astype(np.float32))
            got = tempered(scores, temperature).logp
            np.testing.assert_allclose(got, want[:, :k], atol=2e-3)


def test_refuses_what_makes_no_tree() -> None:
    with pytest.raises(ConfigError, match="top-k 0"):
        build_tree(ROOT, marginal(2, 2, 0), 3, top_k=0)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="temperature"):
            build_tree(ROOT, marginal(2, 2, 0), 3, temperature=temperature)


def test_growing_is_deterministic_with_ties() -> None:
    dice = random.Random(0)
    tokens = np.array([dice.sample(range(90), 4) for _ in range(4)], np.int32)
    scores = DraftScores(tokens=tokens, logp=np.full((4, 4), -math.log(4), np.float32))
    assert build_tree(ROOT, scores, 40) == build_tree(ROOT, scores, 40)
