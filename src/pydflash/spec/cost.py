"""CostModel: what a round costs, by the rows its step has. Measured at load, refined by every round.

It holds seconds, takes seconds, and looks at no clock.
"""

import math
from collections.abc import Iterable
from itertools import pairwise

PROFILED = 8.0  # observations that a measurement at load is worth
SLOWEST = 0.05  # least share of a new observation in a point's estimate
DRIFT = 0.05  # share of a new observation in the scale of all points
SURPRISE = 0.3  # an observation moves estimates as if its logarithm were off by at most this
REDRAW = 8  # observations of well-known points between two redrawings of the curve
GROWTH = 0.1  # beyond what was measured each row adds at least this share of the first point


class Curve:
    """Seconds as a never falling function of a count, from noisy points; lines between them.

    A common scale follows what changes everywhere (clock rates, a growing context, neighbours on the
    machine); each point follows what it alone sees. Outliers have bounded influence.
    """

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}  # seconds at scale 1, weight
        self._scale = 1.0
        self._table: list[float] = []  # at scale 1; empty when it must be drawn again
        self._stale = 0

    @property
    def known(self) -> bool:
        return bool(self._points)

    def measure(self, count: int, seconds: float) -> None:
        """Take a careful measurement."""
        self._points[count] = (max(seconds, 1e-9) / self._scale, PROFILED)
        self._table = []

    def observe(self, count: int, seconds: float) -> None:
        """Take what a round took: it may be noisy."""
        if not seconds > 0:
            return
        if not self._points:
            self._points[count] = (seconds, 1.0)
            self._table = []
            return
        now = max(self(count), 1e-9)
        off = math.log(seconds / now)
        value, weight = self._points.get(count, (now / self._scale, 1.0))
        limit = SURPRISE if weight >= PROFILED else 1.0
        step = min(max(off, -limit), limit)
        share = max(1.0 / (weight + 1.0), SLOWEST)
        self._points[count] = (value * math.exp(share * step), weight + 1.0)
        self._scale *= math.exp(DRIFT * min(max(off, -SURPRISE), SURPRISE))
        self._stale += 1
        if weight < PROFILED or self._stale >= REDRAW:
            self._table, self._stale = [], 0

    def __call__(self, count: int) -> float:
        """Seconds for `count`; 0 before anything is known."""
        self._reach(count)
        return self._scale * self._table[count]

    def upto(self, count: int) -> list[float]:
        """Seconds for 0 up to `count`."""
        self._reach(count)
        scale = self._scale
        return [scale * s for s in self._table[: count + 1]]

    def _reach(self, count: int) -> None:
        if count >= len(self._table):
            self._table = self._draw(max(count, 63, 2 * len(self._table)))

    def _draw(self, count: int) -> list[float]:
        if not self._points:
            return [0.0] * (count + 1)
        line = _rising(sorted((n, *p) for n, p in self._points.items()))
        first = line[0][1]
        last = line[-1]
        slope = GROWTH * first / max(line[0][0], 1)
        if len(line) > 1:
            slope = max(slope, (last[1] - line[-2][1]) / (last[0] - line[-2][0]))
        table = [first] * (line[0][0] + 1)
        for (n0, s0), (n1, s1) in pairwise(line):
            table += [s0 + (s1 - s0) * (n - n0) / (n1 - n0) for n in range(n0 + 1, n1 + 1)]
        table += [last[1] + slope * (n - last[0]) for n in range(last[0] + 1, count + 1)]
        return table


def _rising(points: list[tuple[int, float, float]]) -> list[tuple[int, float]]:
    """Pool neighbours that fall, by weight, until seconds never fall (pool adjacent violators)."""
    pools: list[tuple[float, float, list[int]]] = []
    for n, seconds, weight in points:
        here = [n]
        while pools and pools[-1][0] > seconds:
            other, heavy, ns = pools.pop()
            seconds = (seconds * weight + other * heavy) / (weight + heavy)
            weight += heavy
            here = ns + here
        pools.append((seconds, weight, here))
    return [(n, seconds) for seconds, _, ns in pools for n in ns]


class CostModel:
    """Seconds of a target step by rows and context, and of a draft by sequences and slots."""

    def __init__(self) -> None:
        self.step = Curve()
        self.draft = Curve()
        self._slope = 0.0  # seconds of one row and one stored position

    def profile(
        self,
        steps: Iterable[tuple[int, int, float]],
        drafts: Iterable[tuple[int, int, float]] = (),
    ) -> None:
        """Measurements at load: (rows, context, seconds) of steps, (slots, sequences, seconds) of drafts.

        Where a row count was measured at two contexts, the difference is what context costs.
        """
        measured = list(steps)
        by_rows: dict[int, list[tuple[int, float]]] = {}
        for rows, context, seconds in measured:
            by_rows.setdefault(rows, []).append((context, seconds))
        slopes = sorted(
            (max(at)[1] - min(at)[1]) / (max(at)[0] - min(at)[0]) / rows
            for rows, at in by_rows.items()
            if max(at)[0] > min(at)[0]
        )
        self._slope = max(slopes[len(slopes) // 2], 0.0) if slopes else 0.0
        for rows, at in by_rows.items():
            here = [s - self._slope * rows * context for context, s in at]
            self.step.measure(rows, sum(here) / len(here))
        for slots, sequences, seconds in drafts:
            self.draft.measure(_draft_rows(slots, sequences), seconds)

    def step_s(self, rows: int, context: int = 0) -> float:
        """Seconds of a step of `rows` rows, each over `context` stored positions."""
        return self.step(rows) + self._slope * rows * context

    def steps(self, rows: int, context: int = 0) -> list[float]:
        """Seconds of steps of 0 up to `rows` rows."""
        per_row = self._slope * context
        return [s + per_row * n for n, s in enumerate(self.step.upto(rows))]

    def draft_s(self, slots: int, sequences: int = 1) -> float:
        """Seconds of drafting `slots` positions for `sequences` sequences."""
        return self.draft(_draft_rows(slots, sequences)) if slots and self.draft.known else 0.0

    def drafts(self, slots: int, sequences: int = 1) -> list[float]:
        """Seconds of drafts of 0 up to `slots` slots; all 0 before anything is known."""
        if not self.draft.known:
            return [0.0] * (slots + 1)
        curve = self.draft.upto(_draft_rows(slots, sequences))
        return [0.0, *(curve[_draft_rows(s, sequences)] for s in range(1, slots + 1))]

    def observe_step(self, rows: int, context: int, seconds: float) -> None:
        extra = self._slope * rows * context
        self.step.observe(rows, max(seconds - extra, 0.1 * seconds))

    def observe_draft(self, slots: int, sequences: int, seconds: float) -> None:
        self.draft.observe(_draft_rows(slots, sequences), seconds)


def _draft_rows(slots: int, sequences: int) -> int:
    """Rows of a drafting pass: every sequence has its anchor and its slots."""
    return sequences * (slots + 1)
