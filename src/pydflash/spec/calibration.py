"""Calibration: what a drafter's log-probability is worth, learned from what the target drew.

For a drafted candidate below an accepted node it maps the raw conditional log-probability, at a depth,
to that of being accepted. The map is monotone, so candidates keep their order; it starts as the identity
and forgets slowly. It decides how wide trees are, never what they settle.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pydflash.draft.base import F32, DraftScores

F64 = npt.NDArray[np.float64]

LOW, HIGH = -8, 6  # log-odds of the first and the last bin; bins are one apart
WINDOW = 400  # observations of a depth after which older ones weigh 1/e
POOL_PRIOR = 4.0  # observations that the identity is worth, in the bins of all depths together
DEPTH_PRIOR = 5.0  # observations that the pooled map is worth, in those of one depth
REFRESH = 32  # most observed rounds between two updates of the map
SLACK = 0.5  # standard deviations by which a best candidate may be misjudged for nothing
ALARM = 7.0  # sum of what exceeds the slack that means: the text or the drafter has changed
KEPT = 6.0  # observations that a depth's counts weigh at most after an alarm
_KNOTS = np.arange(LOW, HIGH + 1, dtype=np.float64)
_BINS = len(_KNOTS)
_FAINT = 0.05  # weight of an empty bin when neighbours must be put in order
_ODDS = 9.0  # log-odds are clipped here
_TINY = -8.5  # candidates less likely than this teach nothing


class Calibration:
    """Counts by depth and bin of log-odds. One more line of bins holds every depth off the best path.

    Marginal scores are right about the path of best candidates at most; below other nodes they know
    less, and have a map of their own. Conditional scores (`pair`) need none. Counts are kept with
    growing weights, which is cheaper than letting old ones decay.
    """

    def __init__(self, depths: int = 16) -> None:
        """Tell apart `depths` depths; deeper ones share the last."""
        self._depths = depths
        lines = depths + 1
        self._weight = [1.0] * lines  # of the latest observation
        self._mass = [0.0] * lines  # of all observations
        # By line and bin: observations, hits, and the sums of the probabilities claimed.
        self._counts = [[[0.0] * _BINS for _ in range(lines)] for _ in range(3)]
        self._shift = np.zeros((lines, _BINS))  # log-odds to add at each knot
        self._shifts: list[list[float]] = self._shift.tolist()
        self._waiting = self._rounds = 0
        self._better = self._worse = 0.0  # running sums of surprises

    def apply(self, scores: DraftScores) -> tuple[DraftScores, F32 | None]:
        """Calibrated scores, and the marginals that hold off the best path (`ddtree.Growth`'s `off`)."""
        if not scores.tokens.size:
            return scores, None
        self.update()
        line = np.minimum(np.arange(scores.slots), self._depths - 1)[:, None]
        if scores.pair is not None:
            return replace(scores, pair=self._map(scores.pair, line[..., None])), None
        both = np.stack([line, np.full_like(line, self._depths)])
        on, off = self._map(scores.logp, both)
        return replace(scores, logp=on), off

    @property
    def shift(self) -> F64:
        """f64 [depths + 1, bins]: log-odds to add at each knot, as `OpTable.calibrate` takes them."""
        return self._shift

    def update(self) -> None:
        """Redraw the map if enough was observed since. `apply` does it, too, but then a device may wait."""
        if self._waiting >= min(REFRESH, 1 + self._rounds // 8):
            self._refresh()

    def observe(self, scores: DraftScores, drawn: Sequence[int]) -> float:
        """Learn from a walk: `drawn` follows the root; all of it but its last token was drafted.

        Each drawn token says which candidate of its slot the target took, if any, whether or not the
        tree had that candidate. Returns how much better the first slot did than was believed, -1 to 1.
        """
        count = min(len(drawn), scores.slots)
        if not count or not scores.tokens.size:
            return 0.0
        table = scores.tokens[:count].tolist()
        before, on, first = 0, True, 0.0
        for slot in range(count):
            row = scores.logp[slot] if scores.pair is None else scores.pair[slot, before]
            logps: list[float] = row.tolist()
            here = table[slot]
            taken = here.index(drawn[slot]) if drawn[slot] in here else -1
            line = min(slot, self._depths - 1) if on else self._depths
            best = 0 if scores.pair is None else max(range(len(logps)), key=logps.__getitem__)
            surprise = self._judge(line, logps[best], taken == best)
            if not slot:
                first = surprise
            self._count(line, logps, taken)
            on = on and (scores.pair is not None or taken == 0)
            before = max(taken, 0)
        self._waiting += 1
        self._rounds += 1
        if max(self._better, self._worse) > ALARM:
            self._forget()
        return first

    def _judge(self, line: int, logp: float, hit: bool) -> float:
        """Add up how far the best candidate's fate is from what was believed of it (CUSUM, both sides)."""
        logp = min(max(logp, -60.0), -1e-5)
        odds = logp - math.log(-math.expm1(logp))
        at = round(min(max(odds, LOW), HIGH)) - LOW
        believed = 1.0 / (1.0 + math.exp(-odds - self._shifts[line][at]))
        off = float(hit) - believed
        z = off / math.sqrt(believed * (1.0 - believed) + 0.05)
        self._better = max(self._better + z - SLACK, 0.0)
        self._worse = max(self._worse - z - SLACK, 0.0)
        return off

    def _count(self, line: int, logps: list[float], taken: int) -> None:
        weight = self._weight[line] = self._weight[line] * (1.0 + 1.0 / WINDOW)
        self._mass[line] += weight
        seen, hits, claims = (kind[line] for kind in self._counts)
        for candidate, logp in enumerate(logps):
            if logp < _TINY:
                continue
            claim = math.exp(min(logp, -1e-5))
            at = round(min(max(math.log(claim / (1.0 - claim)), LOW), HIGH)) - LOW
            seen[at] += weight
            claims[at] += weight * claim
            if candidate == taken:
                hits[at] += weight
        if weight > 1e9:
            self._rescale(line, 1.0 / weight)
            self._weight[line] = 1.0

    def _forget(self) -> None:
        """Something changed: believe old counts little, and look at the new ones soon."""
        self._better = self._worse = 0.0
        for line, mass in enumerate(self._mass):
            self._rescale(line, min(1.0, KEPT * self._weight[line] / max(mass, 1e-9)))
        self._rounds = 0
        self._refresh()

    def _rescale(self, line: int, factor: float) -> None:
        self._mass[line] *= factor
        for kind in self._counts:
            kind[line] = [factor * c for c in kind[line]]

    def _refresh(self) -> None:
        self._waiting = 0
        seen, hits, claims = np.array(self._counts) / np.array(self._weight)[:, None]
        every = [counts.sum(0)[None] for counts in (seen, hits, claims)]
        pooled = _shift(every[0], every[1], every[2], np.zeros(_BINS), POOL_PRIOR)
        self._shift = _shift(seen, hits, claims, pooled, DEPTH_PRIOR)
        self._shifts = self._shift.tolist()

    def _map(self, logp: F32, line: npt.NDArray[np.int_]) -> F32:
        """Shift the log-odds by what lies between the two nearest knots of each value's line."""
        odds = _odds(logp)
        place = np.minimum(np.maximum(odds, LOW), HIGH) - LOW
        low = np.minimum(place.astype(np.int64), _BINS - 2)
        left = self._shift[line, low]
        moved = odds + left + (self._shift[line, low + 1] - left) * (place - low)
        out: F32 = (-np.log1p(np.exp(-moved))).astype(np.float32)
        if logp.min() == -np.inf:
            out[..., np.isneginf(logp)] = -np.inf
        return out


def _odds(logp: F32) -> F64:
    """Log-odds of probabilities given by their logarithms, finite."""
    wide = np.minimum(np.maximum(logp.astype(np.float64), -60.0), -1e-5)
    out: F64 = wide - np.log(-np.expm1(wide))
    return out


def _shift(seen: F64, hits: F64, claims: F64, prior: F64, weight: float) -> F64:
    """f64 [lines, bins]: log-odds to add so that claims become hit rates, monotone over the knots.

    `prior` is the shift believed without observations, worth `weight` of them.
    """
    knots = 1.0 / (1.0 + np.exp(-_KNOTS))
    claimed = (claims + _FAINT * knots) / (seen + _FAINT)
    odds = np.clip(np.log(claimed) - np.log1p(-claimed), -_ODDS, _ODDS)
    believed = 1.0 / (1.0 + np.exp(-(odds + prior)))
    rate = (hits + weight * believed) / (seen + weight)
    rate = np.clip(rate, 1e-4, 1 - 1e-4)
    got = _KNOTS + np.log(rate) - np.log1p(-rate) - odds
    return _ordered(got, seen + _FAINT) - _KNOTS


def _ordered(values: F64, weights: F64) -> F64:
    """Weighted isotonic regression of every line: max over starts of min over ends of the means."""
    count = values.shape[-1]
    total = np.zeros((*values.shape[:-1], count + 1))
    heavy = np.zeros_like(total)
    total[..., 1:] = np.cumsum(values * weights, -1)
    heavy[..., 1:] = np.cumsum(weights, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = (total[..., None, 1:] - total[..., :-1, None]) / (
            heavy[..., None, 1:] - heavy[..., :-1, None]
        )  # [lines, start, end]
    starts, ends = np.arange(count)[:, None], np.arange(count)
    means = np.where(ends >= starts, means, np.inf)
    least = np.minimum.accumulate(means[..., ::-1], -1)[..., ::-1]  # [lines, start, at]
    out: F64 = np.where(ends >= starts, least, -np.inf).max(-2)
    return out
