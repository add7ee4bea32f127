"""PrefixCache: stored prefixes that any later sequence may start from, in the pools that running ones use.

Attention's pages are shared, a recurrent state is a slot of its own, a drafter's ring goes along with one
sequence at a time. All of it is a courtesy: running sequences take it back when they need room.
"""

from collections import OrderedDict
from collections.abc import Sequence

from pydflash.kernels.ops import PAGE_SIZE
from pydflash.state.pages import PageId, PagePool
from pydflash.state.prefix import Node, PrefixIndex
from pydflash.state.recurrent import RecurrentStore, SlotId
from pydflash.state.ring import RingContext
from pydflash.state.sequence import SequenceState


class PrefixCache:
    """What finished and running sequences stored, by their tokens."""

    def __init__(
        self,
        pool: PagePool,
        recurrent: RecurrentStore | None = None,
        *,
        grid: int,
        answers: bool = True,
    ) -> None:
        """`grid`: tokens of a prefill chunk. `answers`: keep generated turns as well; what follows them
        was computed on another grid than a cold run's, and may differ from it in the last bits."""
        self.grid = grid
        self.answers = answers
        self._pool = pool
        self._recurrent = recurrent
        self._rings: OrderedDict[Node, RingContext] = OrderedDict()
        self._index = PrefixIndex(
            pool,
            page_size=PAGE_SIZE,
            grid=grid,
            needs_slot=recurrent is not None,
            dropped=self._dropped,
        )

    def __len__(self) -> int:
        """Pages held."""
        return len(self._index)

    def start(
        self, state: SequenceState, tokens: Sequence[int], *, exact: bool, ring: bool = True
    ) -> bool:
        """Give an empty state the longest prefix of `tokens` known. Whether it is exact: what a cold run
        would have stored; `exact` asks for that. `ring`: with a drafter's context, if there is one."""
        node = self._index.find(tokens, exact=exact)
        if node is None:
            return True
        pages = [PageId(n.page) for n in node.path()]
        state.start(pages, node.length)
        state.draft = self._take_ring(node) if ring else None
        is_exact = node.exact
        if self._recurrent is not None:
            state.slot = self._slot_like(node, self._recurrent)
        return is_exact

    def offer(self, tokens: Sequence[int], state: SequenceState, *, exact: bool) -> None:
        """Know what a running sequence has stored up to here, a point of the grid. A recurrent state is
        copied if there is a slot for it, and nothing is kept otherwise."""
        assert state.length == len(tokens)
        slot = None
        if self._recurrent is not None:
            known = self._index.get(tokens)
            if known is None or known.slot is None or known.exact < exact:
                if state.slot is None or not self.free_slot():
                    return
                slot = self._recurrent.copy_of(state.slot)
        node = self._insert(tokens, state, exact=exact, slot=slot)
        if exact:
            self._adopt(state, node)

    def finish(self, tokens: Sequence[int], state: SequenceState, *, is_turn: bool) -> None:
        """Take over what is left of a sequence that is over and give the rest back. `is_turn`: it ends
        with an answer, after which a conversation may go on."""
        assert state.length == len(tokens)
        if is_turn and self.answers:
            slot, state.slot = state.slot, None
            node: Node | None = self._insert(tokens, state, exact=False, slot=slot, end=True)
        else:
            node = self._index.find(tokens)
        if node is not None and state.draft is not None and node not in self._rings:
            state.draft.rollback(node.length)
            if _serves(state.draft, node):
                self._rings[node], state.draft = state.draft, None
        state.release()

    def drop(self, tokens: Sequence[int]) -> None:
        """Forget whatever begins like `tokens`: something is wrong with it."""
        self._index.drop(tokens)

    def evict(self) -> bool:
        """Give up the page least recently used. False when there is none."""
        return self._index.evict()

    def free_slot(self) -> bool:
        """Have a recurrent slot free, as far as the cache can."""
        assert self._recurrent is not None
        oldest = self._index.oldest_slot()
        if not self._recurrent.num_free and oldest is not None:
            self._close_slot(self._index.take_slot(oldest))
        return self._recurrent.num_free > 0

    def drop_ring(self) -> bool:
        """Give up the drafter's context kept longest. False when there is none."""
        if not self._rings:
            return False
        self._rings.popitem(last=False)[1].close()
        return True

    def clear(self) -> None:
        self._index.clear()

    def pages_held(self) -> list[PageId]:
        return [node.page for node in self._index]

    def slots_held(self) -> list[SlotId]:
        return [SlotId(node.slot) for node in self._index if node.slot is not None]

    def check(self) -> None:
        """Assert the invariants."""
        self._index.check()
        assert set(self._rings) <= set(self._index)
        assert all(ring.end <= node.length for node, ring in self._rings.items())

    def _insert(
        self,
        tokens: Sequence[int],
        state: SequenceState,
        *,
        exact: bool,
        slot: SlotId | None,
        end: bool = False,
    ) -> Node:
        pages = state.pages[: -(-len(tokens) // PAGE_SIZE)]
        node = self._index.insert(tokens, pages, exact=exact, slot=slot, end=end)
        if slot is not None and node.slot != slot:
            self._close_slot(slot)
        return node

    def _adopt(self, state: SequenceState, node: Node) -> None:
        """Let a sequence hold the pages known rather than its own with the same bits."""
        for i, known in enumerate(node.path()):
            mine = state.pages[i]
            if known.page != mine:
                self._pool.share([known.page])
                self._pool.free([mine])
                state.pages[i] = known.page

    def _slot_like(self, node: Node, store: RecurrentStore) -> SlotId:
        """A copy of a node's slot, or that slot itself where there is no room for two."""
        oldest = None if store.num_free else self._index.oldest_slot()
        if oldest is node:
            return SlotId(self._index.take_slot(node))
        if oldest is not None:
            self._close_slot(self._index.take_slot(oldest))
        assert node.slot is not None
        return store.copy_of(SlotId(node.slot))

    def _close_slot(self, slot: int) -> None:
        assert self._recurrent is not None
        self._recurrent.free(SlotId(slot))

    def _take_ring(self, node: Node) -> RingContext | None:
        """The drafter's context of what ended here; or of what went on from here, cut back: a copy where
        there is a ring for it."""
        if node in self._rings:
            return self._rings.pop(node)
        for other in reversed(self._rings):
            ring = self._rings[other]
            if _serves(ring, node) and other.length > node.length and node in other.path():
                taken = ring.share() or self._rings.pop(other)
                taken.rollback(node.length)
                return taken
        return None

    def _dropped(self, node: Node) -> None:
        if node.slot is not None:
            self._close_slot(node.slot)
        ring = self._rings.pop(node, None)
        if ring is not None:
            ring.close()


def _serves(ring: RingContext, node: Node) -> bool:
    """Whether a sequence going on from `node` finds something in it: it must reach up to there, for a gap
    starts it afresh."""
    return ring.first < node.length <= ring.end
