"""States: which sequence holds which SequenceState, and what it starts from and leaves behind.

What finished sequences left is a courtesy: its pages count as free, and go first when pages or recurrent
slots are needed.
"""

from collections.abc import Sequence as Many

from pydflash.engine.columns import Scratch
from pydflash.engine.request import Sequence
from pydflash.kernels.ops import PAGE_SIZE, PagedKV, Recurrent
from pydflash.state.base import PagedKVSpec, StateSpec
from pydflash.state.cache import PrefixCache
from pydflash.state.kv import KvStore
from pydflash.state.moves import Moves
from pydflash.state.pages import PagePool
from pydflash.state.recurrent import RecurrentStore
from pydflash.state.ring import RingContext, RingStore
from pydflash.state.sequence import SequenceState, adopt_all


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
        cache: PrefixCache | None = None,
        captures: int = 1,
    ) -> None:
        """`rings`: the drafter's, when there is a drafter that keeps state. `cache`: over the same pool
        and store; None: every prompt is read whole. `captures`: recurrent states that a sequence may leave
        on the way, beside the one it ends with."""
        self.pool = pool
        self.kv = kv
        self.recurrent = recurrent
        self.rings = rings
        self.layers = kv.layers if layers is None else layers
        self.cache = cache
        self.captures = captures
        self._of: dict[int, SequenceState] = {}

    @property
    def scratch(self) -> Scratch | None:
        """Where padding may write, if room was kept for that."""
        if self.kv.scratch is None:
            return None
        slot = None if self.recurrent is None else self.recurrent.scratch
        return Scratch(page=self.kv.scratch, slot=slot or 0)

    def of(self, sequence: Sequence) -> SequenceState:
        return self._of[sequence.request.id]

    def new(self) -> SequenceState:
        """An empty state, held by nobody yet."""
        return SequenceState(self.pool, self.kv, self.recurrent, self._ring())

    def wanted(self, sequence: Sequence, count: int) -> int:
        state = self._of.get(sequence.request.id)
        return -(-count // PAGE_SIZE) if state is None else state.pages_wanted(count)

    def free(self) -> int:
        return self.pool.num_free + self.pool.num_idle

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence its state, begun with what is known of its prompt.

        At least one prompt token is computed, for the logits that follow it. An answer that was preempted
        goes on from exact state alone: it may have begun so.
        """
        state = SequenceState(self.pool, self.kv, self.recurrent)
        sequence.is_exact = True
        if self.cache is not None and sequence.request.reuse:
            prompt = sequence.request.prompt[:-1]
            exact = sequence.num_generated > 0
            drafts = sequence.request.speculate
            sequence.is_exact = self.cache.start(state, prompt, exact=exact, ring=drafts)
        if state.draft is None and sequence.request.speculate:
            state.draft = self._ring()
        sequence.stored = state.length
        self._of[sequence.request.id] = state

    def reserve(self, sequence: Sequence, count: int) -> SequenceState:
        """Make the next `count` positions of a sequence writable."""
        state, cache = self.of(sequence), self.cache
        if cache is not None:
            while state.pages_wanted(count) > self.pool.num_free and cache.evict():
                pass
            if self.recurrent is not None and state.slot is None:
                cache.free_slot()
        state.reserve(count)
        return state

    def commit(self, states: Many[SequenceState], paths: Many[Many[int]]) -> None:
        """Adopt each row's path of the step just run; what it proposed besides is forgotten."""
        self.move(self.adopt(states, paths))

    def adopt(self, states: Many[SequenceState], paths: Many[Many[int]]) -> Moves:
        """The host's part of `commit`; `move` is the device's, which what is more urgent may precede."""
        return adopt_all(list(zip(states, paths, strict=True)))

    def move(self, moves: Moves) -> None:
        """The device's part of `commit`: before any state is shared, released or stepped again."""
        moves.run()
        if self.recurrent is not None:
            self.recurrent.drop_tapes()

    def offer(self, sequence: Sequence) -> None:
        """Let others start from here, if a prompt chunk ended here that is worth it: any whole one for
        attention's pages; for a recurrent state, which takes a slot, the points of the grid at or before
        those that the request names, and the prompt's last."""
        state, cache = self.of(sequence), self.cache
        here = state.length
        if cache is None or not sequence.request.reuse or not here or here % cache.grid:
            return
        if not sequence.is_exact and not cache.answers:
            return
        if self.recurrent is None or here in self._wanted(sequence, cache.grid):
            cache.offer(sequence.tokens[:here], state, exact=sequence.is_exact)

    def release(self, sequence: Sequence) -> None:
        self._of.pop(sequence.request.id).release()
        sequence.stored = 0

    def finish(self, sequence: Sequence) -> None:
        """Let a sequence go; what it stored is there for others to start from."""
        state = self._of.pop(sequence.request.id, None)
        if state is None:
            return
        if self.cache is None or not sequence.request.reuse:
            state.release()
            return
        state.rollback(state.length)
        tokens = sequence.tokens[: state.length]
        is_turn = state.length > sequence.num_prompt and sequence.is_sound
        self.cache.finish(tokens, state, is_turn=is_turn)
        if not sequence.is_sound:
            self.cache.drop(tokens)

    def forget(self) -> None:
        """Drop everything that finished sequences left."""
        if self.cache is not None:
            self.cache.clear()

    def check(self) -> None:
        states = list(self._of.values())
        for state in states:
            state.check()
        pages = [state.pages for state in states]
        slots = [slot for state in states for slot in state.slots_held()]
        if self.cache is not None:
            self.cache.check()
            pages.append(self.cache.pages_held())
            slots += self.cache.slots_held()
        self.pool.check(pages)
        if self.recurrent is not None:
            self.recurrent.check(slots)

    def _wanted(self, sequence: Sequence, grid: int) -> set[int]:
        """Lengths at which to copy this sequence's recurrent state."""
        at = sequence.request.capture_at
        named = {n // grid * grid for n in at}
        last = (sequence.num_prompt - 1) // grid * grid
        return named | {last} if len(at) < self.captures else named

    def _ring(self) -> RingContext | None:
        """A ring for a new state; what was kept longest without use loses its own."""
        if self.rings is None:
            return None
        ring = self.rings.open()
        if ring is None and self.cache is not None and self.cache.drop_ring():
            ring = self.rings.open()
        return ring


def layer_states(
    specs: Many[StateSpec], kv: KvStore, recurrent: RecurrentStore | None
) -> list[PagedKV | Recurrent]:
    """The stores' records in order of layer, as a model's forward takes them."""
    pages = iter(kv.layers)
    slots = iter(recurrent.layers if recurrent is not None else ())
    return [next(pages) if isinstance(s, PagedKVSpec) else next(slots) for s in specs]
