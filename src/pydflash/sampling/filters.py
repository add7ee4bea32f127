"""Which tokens may be drawn: temperature, top-k, top-p, min-p, in that order.

Candidates are ordered by (logit descending, id ascending), and prefix sums run in that order, one after
another, in float64: the same tokens survive whatever else is in the batch. Preselection only saves time.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pydflash.sampling.noise import F64, Ids
from pydflash.sampling.params import SamplingParams

F32 = npt.NDArray[np.float32]

_FIRST_GUESS = 256  # candidates sorted at first for top-p; grows until the nucleus fits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Tokens that survived, best first when `ids` is given; `ids` None means the whole vocabulary by id.

    scores f64 [C] is logit / temperature, not normalised.
    """

    ids: Ids | None
    scores: F64

    def token(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])


def filter_row(row: F32, params: SamplingParams) -> Candidates:
    """Survivors of a finite-or-minus-infinite row of logits f32 [V]; at least one. Needs temperature > 0."""
    ids: Ids | None = None
    if 0 < params.top_k < len(row):
        ids = best(row, params.top_k)
    if params.top_p < 1.0:
        ids = _nucleus(row, ids, params)
    if params.min_p > 0.0:
        ids = _floor(row, ids, params)
    kept = row if ids is None else row[ids]
    scores = kept.astype(np.float64)
    scores /= params.temperature
    return Candidates(ids=ids, scores=scores)


def best(row: F32, count: int) -> Ids:
    """The `count` best token ids, ordered by (logit descending, id ascending)."""
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    if count >= len(row):
        return _ordered(row, np.arange(len(row), dtype=np.int64))
    # The library says where the cut lies; who stands on it is decided by id.
    cut = np.partition(row, len(row) - count)[len(row) - count]
    ids: Ids = np.flatnonzero(row >= cut)
    return _ordered(row, ids)[:count]


def log_total(scores: F64) -> float:
    """log(sum(exp(scores))) in float64."""
    top = float(scores.max())
    return top + math.log(float(np.exp(scores - top).sum()))


def _ordered(row: F32, ids: Ids) -> Ids:
    # `ids` ascend, and a stable sort keeps that among equal logits.
    order = np.argsort(-row[ids], kind="stable")
    ordered: Ids = ids[order]
    return ordered


def _weights(row: F32, top: float, temperature: float) -> F64:
    scaled = row.astype(np.float64)
    scaled -= top
    scaled /= temperature
    weights: F64 = np.exp(scaled, out=scaled)
    return weights


def _nucleus(row: F32, ids: Ids | None, params: SamplingParams) -> Ids:
    """The shortest ordered prefix that holds at least `top_p` of the probability."""
    top = float(row.max())
    if ids is not None:
        weights = _weights(row[ids], top, params.temperature)
        return ids[: _prefix(weights, params.top_p * float(weights.sum())) or len(ids)]
    goal = params.top_p * float(_weights(row, top, params.temperature).sum())
    count = _FIRST_GUESS
    while True:
        ids = best(row, count)
        size = _prefix(_weights(row[ids], top, params.temperature), goal)
        if size or len(ids) == len(row):
            return ids[: size or len(ids)]
        count *= 8


def _prefix(weights: F64, goal: float) -> int:
    """Length of the shortest prefix whose sum reaches `goal`; 0 when none does."""
    reached = np.cumsum(weights) >= goal
    at = int(np.argmax(reached))
    return at + 1 if reached[at] else 0


def _floor(row: F32, ids: Ids | None, params: SamplingParams) -> Ids:
    """Tokens at least `min_p` times as likely as the likeliest."""
    top = float(row.max())
    if ids is None:
        # A little too many, so that the exact test below is the only one that decides.
        cut = top + params.temperature * (math.log(params.min_p) - 1e-3)
        ids = np.flatnonzero(row >= np.float32(cut - abs(cut) * 1e-6))
        ids = _ordered(row, ids)
    kept: Ids = ids[_weights(row[ids], top, params.temperature) >= params.min_p]
    return kept
