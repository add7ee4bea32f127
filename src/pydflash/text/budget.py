"""The reasoning budget as a state machine over token ids: when a thought is closed by force, and how.

It sees each sampled token and says which one counts. Pure: the engine asks, nothing here is random.
With `free` the engine knows how many tokens it may settle at once before the machine could step in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CloseKind = Literal["natural", "hard"]
_LOOPS = range(
    12, 81
)  # periods, in tokens, of a loop that an answer after a forced close falls into
_MOST_TAIL = 2 * _LOOPS[-1]
_ENDLESS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """Token ids: of the reasoning's opener and closer, and of the text that closes it by force.

    `force` ends with the closer (perhaps with some white space after it).
    """

    opener: tuple[int, ...]
    closer: tuple[int, ...]
    force: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.closer
        assert self.force


class ThinkingBudget:
    """Follows one answer.

    Thinking is closed when it has `ceiling` tokens, or when only `reserve` of the `max_output` are
    left. `close_kind` says who closed it; `degenerate` that the answer should be ended, as it loops.
    """

    def __init__(
        self,
        markers: Markers,
        *,
        starts_open: bool,
        ceiling: int,
        reserve: int,
        max_output: int,
        runs: "RunGuard | None" = None,
    ) -> None:
        """`runs` ends answers that say one token again and again; None: nothing does."""
        self.close_kind: CloseKind | None = None
        self.thinking_tokens = 0
        self.content_tokens = 0
        self._before = 0  # of them, those before the thought
        self.degenerate = False
        self._markers = markers
        self._open = starts_open
        self._ceiling = min(ceiling, max(0, max_output - reserve))
        self._reserve = reserve
        self._max_output = max_output
        self._runs = runs
        self._pending: list[int] = []  # what is still to be forced
        self._tail: list[int] = []  # tokens since the opener (for markers) or since a forced close

    @property
    def free(self) -> int:
        """Tokens that may be settled before one might be forced: 0 means that the next one may be."""
        if self._open:
            return 0 if self._pending else max(0, self._left())
        if self.close_kind or not self._markers.opener:
            return _ENDLESS
        return 1 + max(0, self._left() - 1)  # the opener may come next

    def thought_within(self, count: int) -> int:
        """Tokens of the thought among the answer's first `count`: whoever reads an answer that is over
        looks back at a machine that may have gone on."""
        return min(max(count - self._before, 0), self.thinking_tokens)

    def step(self, sampled: int) -> int:
        """Take the token sampled next; returns the one to commit in its place (mostly the same)."""
        token = self._forced(sampled)
        self._count(token)
        self._watch(token)
        return token

    def _left(self) -> int:
        used = self.thinking_tokens + self.content_tokens
        return min(self._ceiling - self.thinking_tokens, self._max_output - self._reserve - used)

    def _forced(self, sampled: int) -> int:
        if self._open and not self._pending and self._left() <= 0 and self.close_kind is None:
            # The model may be closing by itself in this very step.
            self.close_kind = "natural" if sampled == self._markers.force[0] else "hard"
            self._pending = list(self._markers.force)
        return self._pending.pop(0) if self._pending else sampled

    def _count(self, token: int) -> None:
        self._tail = [*self._tail[-_MOST_TAIL:], token]
        if not self._open:
            self.content_tokens += 1
            if self.close_kind is None and _ends(self._tail, self._markers.opener):
                self._open, self._tail = True, []
                self._before = self.content_tokens
            return
        self.thinking_tokens += 1
        if self._pending or (
            self.close_kind is None and not _ends(self._tail, self._markers.closer)
        ):
            return
        self._open, self._tail = False, []
        self.close_kind = self.close_kind or "natural"

    def _watch(self, token: int) -> None:
        if self._runs is not None:
            self._runs.step(token)
            self.degenerate = self.degenerate or self._runs.degenerate
        if self.close_kind == "hard" and not self._open and _loops(self._tail):
            self.degenerate = True


class RunGuard:
    """Sees an answer that says one token `longest` times in a row: then it is to end (`degenerate`)."""

    def __init__(self, longest: int) -> None:
        assert longest > 1
        self.degenerate = False
        self._longest = longest
        self._last, self._times = -1, 0

    def step(self, sampled: int) -> int:
        """Take the token sampled next, which is the one that counts."""
        self._times = self._times + 1 if sampled == self._last else 1
        self._last = sampled
        self.degenerate = self.degenerate or self._times >= self._longest
        return sampled


def _ends(tail: Sequence[int], marker: tuple[int, ...]) -> bool:
    return bool(marker) and tuple(tail[-len(marker) :]) == marker


def _loops(tail: Sequence[int]) -> bool:
    """Do the last 2P tokens repeat with a period P?"""
    return any(
        len(tail) >= 2 * period and tail[-period:] == tail[-2 * period : -period]
        for period in _LOOPS
        if len(tail) > period and tail[-1] == tail[-1 - period]
    )
