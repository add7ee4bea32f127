"""States: which sequence holds which SequenceState, and what finished conversations left behind.

Kept states are a courtesy: their pages count as free, and the oldest go first when pages are needed.
"""

from collections import OrderedDict
from collections.abc import Sequence as Many
from dataclasses import dataclass

from pydflash.engine.request import Sequence
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.state.kv import KvStore
from pydflash.state.pages import PagePool
from pydflash.state.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class _Kept:
    tokens: list[int]
    state: SequenceState


class States:
    """Serves the scheduler's `Pages` over the page pool."""

    def __init__(self, pool: PagePool, kv: KvStore) -> None:
        self.pool = pool
        self.kv = kv
        self._of: dict[int, SequenceState] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def of(self, sequence: Sequence) -> SequenceState:
        return self._of[sequence.request.id]

    def wanted(self, sequence: Sequence, count: int) -> int:
        state = self._of.get(sequence.request.id)
        return -(-count // PAGE_SIZE) if state is None else state.pages_wanted(count)

    def free(self) -> int:
        return self.pool.num_free + sum(len(k.state.pages) for k in self._kept.values())

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence its state: what its conversation kept of the same tokens, or a fresh one."""
        kept = self._kept.pop(sequence.request.keep, None) if sequence.request.keep else None
        state = SequenceState(self.pool, self.kv) if kept is None else kept.state
        if kept is not None:
            # At least one prompt token is computed, for the logits that follow it.
            same = _common(kept.tokens, sequence.tokens[: sequence.num_prompt - 1])
            state.rollback(same)
        sequence.stored = state.length
        sequence.cached = max(sequence.cached, state.length)
        self._of[sequence.request.id] = state

    def reserve(self, sequence: Sequence, count: int) -> SequenceState:
        """Make the next `count` positions of a sequence writable."""
        state = self.of(sequence)
        while self._kept and state.pages_wanted(count) > self.pool.num_free:
            self._kept.popitem(last=False)[1].state.release()
        state.reserve(count)
        return state

    def release(self, sequence: Sequence) -> None:
        self._of.pop(sequence.request.id).release()
        sequence.stored = 0

    def finish(self, sequence: Sequence) -> None:
        """Let a sequence go; a conversation's state is kept under its name."""
        state = self._of.pop(sequence.request.id, None)
        if state is None:
            return
        keep = sequence.request.keep
        if keep is None:
            state.release()
            return
        state.rollback(state.length)
        self.forget(keep)
        self._kept[keep] = _Kept(sequence.tokens[: state.length], state)

    def forget(self, keep: str) -> None:
        """Drop what a conversation left."""
        kept = self._kept.pop(keep, None)
        if kept is not None:
            kept.state.release()

    def check(self) -> None:
        held = [*self._of.values(), *(k.state for k in self._kept.values())]
        for state in held:
            state.check()
        self.pool.check(state.pages for state in held)


def _common(a: Many[int], b: Many[int]) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
