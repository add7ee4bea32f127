"""Calibration: from claims to acceptance, in order, from few samples and again after a change."""

import numpy as np
import pytest

from pydflash.draft.base import DraftScores
from pydflash.spec.calibration import Calibration

K = 4


def claim(dice: np.random.Generator, slots: int = 4, *, pair: bool = False) -> DraftScores:
    shape = (slots, K, K) if pair else (slots, K)
    logits = np.sort(dice.normal(0, 2.0, shape))[..., ::-1]
    logp = (logits - np.log(1.0 + np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)
    tokens = np.tile(np.arange(K, dtype=np.int32), (slots, 1))
    if pair:
        logp[0] = logp[0, :1]
        return DraftScores(tokens=tokens, logp=logp[:, 0], pair=logp)
    return DraftScores(tokens=tokens, logp=logp)


def walk(dice: np.random.Generator, scores: DraftScores, truth: float, off: float) -> list[int]:
    """Draw as long as candidates are drawn: true probabilities are claims to the power `truth`."""
    drawn: list[int] = []
    factor = 1.0
    for slot in range(scores.slots):
        logp = scores.logp[slot] if scores.pair is None else scores.pair[slot, (drawn or [0])[-1]]
        p = np.exp(truth * logp) * factor
        rank = int(np.searchsorted(np.cumsum(p / max(1.0, p.sum())), dice.random()))
        drawn.append(rank if rank < K else 99)
        if rank == K:
            return drawn
        factor = factor if rank == 0 else off
    return [*drawn, 99]


def mean_error(got: np.ndarray, scores: DraftScores, truth: float, factor: float) -> float:
    p = np.exp(truth * scores.logp)
    want = p / np.maximum(1.0, p.sum(-1, keepdims=True)) * factor
    return float(np.abs(np.exp(got) - want).mean())


def test_starts_as_the_identity() -> None:
    scores = claim(np.random.default_rng(0))
    got, off = Calibration(4).apply(scores)
    np.testing.assert_allclose(np.exp(got.logp), np.exp(scores.logp), atol=2e-5)
    assert off is not None
    np.testing.assert_allclose(np.exp(off), np.exp(scores.logp), atol=2e-5)


def test_learns_what_claims_are_worth_on_and_off_the_best_path() -> None:
    dice = np.random.default_rng(1)
    calibration = Calibration(4)
    for _ in range(1000):
        scores = claim(dice)
        calibration.apply(scores)
        calibration.observe(scores, walk(dice, scores, 2.0, 0.2))
    errors = []
    for _ in range(50):
        scores = claim(dice)
        got, off = calibration.apply(scores)
        assert off is not None
        errors.append(
            (
                mean_error(got.logp, scores, 2.0, 1.0),
                mean_error(off, scores, 2.0, 0.2),
                mean_error(scores.logp, scores, 2.0, 1.0),
                mean_error(scores.logp, scores, 2.0, 0.2),
            )
        )
    on, below, raw_on, raw_below = np.mean(errors, 0)
    assert on < 0.4 * raw_on
    assert below < 0.4 * raw_below


def test_conditional_scores_are_calibrated_by_their_own_rows() -> None:
    dice = np.random.default_rng(2)
    calibration = Calibration(4)
    for _ in range(1000):
        scores = claim(dice, pair=True)
        calibration.observe(scores, walk(dice, scores, 2.0, 1.0))
    scores = claim(dice, pair=True)
    got, off = calibration.apply(scores)
    assert off is None
    assert got.pair is not None
    assert scores.pair is not None
    assert (
        np.abs(np.exp(got.pair[1]) - np.exp(2 * scores.pair[1])).mean()
        < 0.5 * np.abs(np.exp(scores.pair[1]) - np.exp(2 * scores.pair[1])).mean()
    )


@pytest.mark.parametrize("rounds", [1, 3, 20, 300])
def test_keeps_the_order_of_candidates_and_stays_a_probability(rounds: int) -> None:
    dice = np.random.default_rng(rounds)
    calibration = Calibration(6)
    for _ in range(rounds):
        scores = claim(dice, 6)
        calibration.observe(scores, [int(x) for x in dice.integers(0, K + 2, 7)])
    got, off = calibration.apply(claim(dice, 9))
    assert off is not None
    for logp in (got.logp, off):
        assert logp.dtype == np.float32
        assert np.isfinite(logp).all()
        assert (logp <= 0).all()
        assert (np.diff(logp) <= 1e-6).all()


def test_few_samples_move_it_little_and_many_far() -> None:
    tokens = np.arange(2, dtype=np.int32)[None]
    scores = DraftScores(tokens=tokens, logp=np.log([[0.9, 0.05]]).astype(np.float32))
    calibration = Calibration(1)
    found = []
    for _ in range(60):
        calibration.observe(scores, [99])
        found.append(float(np.exp(calibration.apply(scores)[0].logp[0, 0])))
    assert 0.5 < found[0] < 0.9
    assert found[-1] < 0.1


def test_notices_a_change_within_few_rounds() -> None:
    tokens = np.arange(2, dtype=np.int32)[None]
    scores = DraftScores(tokens=tokens, logp=np.log([[0.8, 0.1]]).astype(np.float32))
    calibration = Calibration(1)
    for drawn, above in (([0], True), ([99], False), ([0], True)):
        for _ in range(1000):
            calibration.observe(scores, drawn)
            calibration.apply(scores)
        for _ in range(25):
            calibration.observe(scores, [99] if drawn == [0] else [0])
            calibration.apply(scores)
        p = float(np.exp(calibration.apply(scores)[0].logp[0, 0]))
        assert (p < 0.4) if above else (p > 0.6)


def test_the_first_slots_surprise_is_told() -> None:
    tokens = np.arange(2, dtype=np.int32)[None]
    scores = DraftScores(tokens=tokens, logp=np.log([[0.25, 0.1]]).astype(np.float32))
    calibration = Calibration(1)
    assert calibration.observe(scores, [0]) == pytest.approx(0.75, abs=0.1)
    assert calibration.observe(scores, [1]) == pytest.approx(-0.25, abs=0.1)
    assert calibration.observe(DraftScores.nothing(), [1]) == 0.0
    assert calibration.observe(scores, []) == 0.0


def test_impossible_candidates_stay_impossible() -> None:
    pair = np.full((2, 2, 2), -np.inf, np.float32)
    pair[:, :, 0] = np.log(0.5)
    tokens = np.array([[5, 6], [7, 8]], np.int32)
    scores = DraftScores(tokens=tokens, logp=pair[:, 0], pair=pair)
    calibration = Calibration(2)
    for _ in range(40):
        calibration.observe(scores, [5, 7, 9])
    got = calibration.apply(scores)[0].pair
    assert got is not None
    assert np.isneginf(got[:, :, 1]).all()
    assert (np.exp(got[:, :, 0]) > 0.8).all()


def test_counts_stay_finite_over_long_runs() -> None:
    scores = claim(np.random.default_rng(0), 1)
    calibration = Calibration(1)
    calibration._weight = [1e9, 1e9]
    for _ in range(100):
        calibration.observe(scores, [0])
    assert max(calibration._weight) < 1e9 + 1
    assert np.isfinite(calibration.apply(scores)[0].logp).all()
