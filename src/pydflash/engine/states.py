"""States: which sequence holds which SequenceState, and what finished conversations left behind.

Kept states are a courtesy: their pages count as free, and the oldest go first when pages or recurrent slots
are needed; so do captures of running sequences.
"""

from collections import OrderedDict
from collections.abc import Sequence as Many
from dataclasses import dataclass

from pydflash.engine.request import Sequence
from pydflash.kernels.ops import PAGE_SIZE, PagedKV, Recurrent
from pydflash.state.base import PagedKVSpec, StateSpec
from pydflash.state.kv import KvStore
from pydflash.state.pages import PagePool
from pydflash.state.recurrent import RecurrentStore
from pydflash.state.ring import RingContext, RingStore
from pydflash.state.sequence import SequenceState, commit_all


@dataclass(frozen=True, slots=True)
class _Kept:
    tokens: list[int]
    state: SequenceState


class States:
    """Serves the scheduler's `Pages` over the page pool; `layers` are what a model's forward takes."""

    def __init__(
        self,
        pool: PagePool,
        kv: KvStore,
        recurrent: RecurrentStore | None = None,
        layers: Many[PagedKV | Recurrent] | None = None,
        *,
        rings: RingStore | None = None,
        captures: int = 1,
    ) -> None:
        """`rings`: the drafter's, when there is a drafter that keeps state. `captures`: recurrent states
        to come back to that each sequence may hold beside its own."""
        self.pool = pool
        self.kv = kv
        self.recurrent = recurrent
        self.rings = rings
        self.layers = kv.layers if layers is None else layers
        self.captures = captures
        self._of: dict[int, SequenceState] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def of(self, sequence: Sequence) -> SequenceState:
        return self._of[sequence.request.id]

    def new(self) -> SequenceState:
        """An empty state, held by nobody yet."""
        return SequenceState(self.pool, self.kv, self.recurrent, self._ring())

    def wanted(self, sequence: Sequence, count: int) -> int:
        state = self._of.get(sequence.request.id)
        return -(-count // PAGE_SIZE) if state is None else state.pages_wanted(count)

    def free(self) -> int:
        return self.pool.num_free + sum(len(k.state.pages) for k in self._kept.values())

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence its state: what its conversation kept of the same tokens, or a fresh one."""
        kept = self._kept.pop(sequence.request.keep, None) if sequence.request.keep else None
        state = self.new() if kept is None else kept.state
        if kept is not None:
            # At least one prompt token is computed, for the logits that follow it.
            same = _common(kept.tokens, sequence.tokens[: sequence.num_prompt - 1])
            state.rollback(state.restore_point(same))
        sequence.stored = state.length
        sequence.cached = max(sequence.cached, state.length)
        self._of[sequence.request.id] = state

    def reserve(self, sequence: Sequence, count: int) -> SequenceState:
        """Make the next `count` positions of a sequence writable."""
        state = self.of(sequence)
        while self._kept and state.pages_wanted(count) > self.pool.num_free:
            self._evict()
        if self.recurrent is not None and state.slot is None:
            self._free_slot(self.recurrent)
        state.reserve(count)
        return state

    def commit(self, states: Many[SequenceState], paths: Many[Many[int]]) -> None:
        """Adopt each row's path of the step just run; what it proposed besides is forgotten."""
        commit_all(list(zip(states, paths, strict=True)))
        if self.recurrent is not None:
            self.recurrent.drop_tapes()

    def capture(self, sequence: Sequence, grid: int) -> None:
        """Keep the way back to here, if here is on the prefill grid and a conversation may come back.

        It may to where its request says, else to the latest such point: templates rewrite the end of a
        prompt (a thought is dropped, say), and pages alone can follow that.
        """
        state, request = self.of(sequence), sequence.request
        here = state.length
        if self.recurrent is None or request.keep is None or not here or here % grid:
            return
        wanted = {at // grid * grid for at in request.capture_at} or {here}
        if here not in wanted:
            return
        state.drop_captures(keep=wanted)
        if self.recurrent.num_free or self._evict():
            state.capture()

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
        if self.recurrent is not None:
            self.recurrent.check([slot for state in held for slot in state.slots_held()])

    def _ring(self) -> RingContext | None:
        """A ring for a new state; the oldest conversation that nobody continues loses its own."""
        if self.rings is None:
            return None
        ring = self.rings.open()
        for kept in self._kept.values():
            if ring is not None:
                break
            kept.state.drop_draft()
            ring = self.rings.open()
        return ring

    def _evict(self) -> bool:
        """Drop the oldest kept conversation, if there is one."""
        if self._kept:
            self._kept.popitem(last=False)[1].state.release()
            return True
        return False

    def _free_slot(self, store: RecurrentStore) -> None:
        """Have a slot free, as far as courtesies held them."""
        while not store.num_free and self._evict():
            pass
        if not store.num_free:
            for state in self._of.values():
                state.drop_captures()


def layer_states(
    specs: Many[StateSpec], kv: KvStore, recurrent: RecurrentStore | None
) -> list[PagedKV | Recurrent]:
    """The stores' records in order of layer, as a model's forward takes them."""
    pages = iter(kv.layers)
    slots = iter(recurrent.layers if recurrent is not None else ())
    return [next(pages) if isinstance(s, PagedKVSpec) else next(slots) for s in specs]


def _common(a: Many[int], b: Many[int]) -> int:
    """Length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
