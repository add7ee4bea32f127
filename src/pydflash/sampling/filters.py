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


def filter_best(
    ids: Ids, row: F32, params: SamplingParams, log_total: float | None
) -> Candidates | None:
    """Survivors, from the best of a longer row alone: ids [n] and their logits f32 [n], best first.

    None when these do not prove what `filter_row` would find in the whole; else it is that, bit for bit.
    `log_total` is logsumexp(logits / temperature) of the whole row to f32's precision, if known.
    """
    top = float(row[0])
    if params.top_k:
        if params.top_k > len(ids):
            return None
        ids, row = ids[: params.top_k], row[: params.top_k]
    weights = _weights(row, top, params.temperature)
    size = len(ids)
    if params.top_p < 1.0:
        if params.top_k:
            size = _prefix(weights, params.top_p * float(weights.sum())) or size
        elif log_total is None or not math.isfinite(log_total):
            return None
        else:
            size = _proven(weights, params.top_p, log_total - top / params.temperature, log_total)
            if not size:
                return None
    elif not params.top_k and not (params.min_p > 0.0 and weights[-1] < params.min_p * 0.999999):
        return None
    ids, row, weights = ids[:size], row[:size], weights[:size]
    if params.min_p > 0.0:
        kept = weights >= params.min_p
        ids, row = ids[kept], row[kept]
    scores = row.astype(np.float64)
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
    if not len(weights):
        return 0
    reached = np.cumsum(weights) >= goal
    at = int(np.argmax(reached))
    return at + 1 if reached[at] else 0


def _proven(weights: F64, top_p: float, log_sum: float, scale: float) -> int:
    """`_prefix` for a goal known to f32's precision (of numbers of `scale`); 0 when that leaves doubt."""
    doubt = 2e-5 + 1e-6 * abs(scale)
    if doubt > 0.1 or log_sum > 700.0:
        return 0
    goal = top_p * math.exp(log_sum)
    size = _prefix(weights, goal * (1.0 + doubt))
    return size if size and not _prefix(weights[: size - 1], goal * (1.0 - doubt)) else 0


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
