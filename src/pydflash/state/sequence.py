"""SequenceState: what the engine remembers of one sequence, and the verbs that move it.

Invariant: `length` positions are stored, in every kind of state; pages cover at least them; a page that more
than one sequence holds is never written. Positions beyond `length` are scratch that the next commit may
adopt. Pages can be cropped to any length; a recurrent state only goes back to a length it was captured at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pydflash.errors import ConfigError, PydflashError
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.state.kv import KvStore
from pydflash.state.moves import Moves
from pydflash.state.pages import PageId, PagePool
from pydflash.state.recurrent import Advance, RecurrentStore, SlotId
from pydflash.state.ring import RingContext, RingSnapshot


class NotKept(PydflashError):
    """A recurrent state was asked back at a length that nobody captured; `restore_point` says what is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A sequence's state on the host, tagged with the layout it needs."""

    layout: str
    length: int
    kv: list[torch.Tensor]
    recurrent: list[torch.Tensor] = field(default_factory=list)
    draft: RingSnapshot | None = None

    @property
    def nbytes(self) -> int:
        draft = 0 if self.draft is None else self.draft.nbytes
        return draft + sum(t.numel() * t.element_size() for t in (*self.kv, *self.recurrent))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A step this state takes part in and has not committed."""

    number: int  # of the recurrent store's steps
    first: int  # index in the step of this row's first token
    count: int
    in_place: bool  # the slot is advanced by the step itself


class SequenceState:
    """One sequence's pages, recurrent slot and length, and what its drafter knows of it."""

    def __init__(
        self,
        pool: PagePool,
        kv: KvStore,
        recurrent: RecurrentStore | None = None,
        draft: RingContext | None = None,
    ) -> None:
        self._pool = pool
        self._kv = kv
        self._recurrent = recurrent
        self.draft = draft  # may lag behind `length`; None: nobody drafts for this sequence
        self.pages: list[PageId] = []
        self.length = 0
        self.slot: SlotId | None = None  # None: no recurrent layers, or nothing stored yet
        self.captures: dict[int, SlotId] = {}  # length -> the recurrent state there
        self._open: _Step | None = None

    def start(self, pages: Sequence[PageId], length: int, slot: SlotId | None = None) -> None:
        """Begin with `length` positions that `pages` hold, copied only when written. `slot`, the recurrent
        state there, becomes this state's own."""
        assert not self.pages
        assert self.slot is None
        self._pool.share(pages)
        self.pages = list(pages)
        self.length = length
        self.slot = slot

    def pages_wanted(self, count: int) -> int:
        """Pages that `reserve(count)` would take from the pool."""
        last = (self.length + count - 1) // PAGE_SIZE if count else -1
        fresh = max(0, last + 1 - len(self.pages))
        return fresh + sum(self._pool.is_shared(p) for p in self._written(count))

    def reserve(self, count: int) -> None:
        """Make the next `count` positions writable. Raises OutOfPages or OutOfSlots and changes nothing."""
        shared = [i for i, p in self._written_at(count) if self._pool.is_shared(p)]
        if self._recurrent is not None and self.slot is None:
            self.slot = self._recurrent.allocate()
        fresh = self._pool.allocate(self.pages_wanted(count))
        for i in shared:
            mine = fresh.pop()
            lanes = range(PAGE_SIZE)
            self._kv.copy(
                [self.pages[i] * PAGE_SIZE + n for n in lanes],
                [mine * PAGE_SIZE + n for n in lanes],
            )
            self._pool.free([self.pages[i]])
            self.pages[i] = mine
        self.pages.extend(fresh)

    def place(self, position: int) -> int:
        """Physical place of a position that pages cover."""
        return self.places(position, position + 1)[0]

    def places(self, start: int, end: int) -> list[int]:
        """Physical places of positions start..end - 1, which pages cover."""
        pages = self.pages
        return [pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in range(start, end)]

    def begin(self, first: int, count: int, *, in_place: bool) -> None:
        """A step is about to run in which this state's row is tokens first..first + count.

        `in_place`: prompt rows and rows of one token advance the recurrent slot as they run.
        """
        if self._recurrent is None:
            return
        assert not self._is_ahead, "the last step advanced this state and was never committed"
        if first == 0:
            self._recurrent.step += 1
        number = self._recurrent.step
        self._open = _Step(number=number, first=first, count=count, in_place=in_place)

    def extend(self, count: int) -> None:
        """The next `count` positions were stored in order."""
        self.commit(range(count))

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of `path`, stored at length + node, as the next positions in order."""
        adopt_all([(self, path)]).run()

    def capture(self) -> None:
        """Keep what is needed to come back to this length. Raises OutOfSlots."""
        assert not self._is_ahead
        if self._recurrent is None or self.slot is None or self.length in self.captures:
            return
        self.captures[self.length] = self._recurrent.copy_of(self.slot)

    def restore_point(self, length: int) -> int:
        """The greatest length, at most `length`, that `rollback` can go to."""
        if self._recurrent is None or (length >= self.length and not self._is_ahead):
            return min(length, self.length)
        return max((n for n in self.captures if n <= length), default=0)

    def rollback(self, length: int) -> None:
        """Forget everything from position `length` on. Raises NotKept and changes nothing."""
        assert 0 <= length <= self.length
        if self._recurrent is not None:
            self._rollback_slot(self._recurrent, length)
        if self.draft is not None:
            self.draft.rollback(length)
        self.length = length
        keep = -(-length // PAGE_SIZE)
        self._pool.free(self.pages[keep:])
        del self.pages[keep:]

    def share(self) -> "SequenceState":
        """A second sequence with the same past; pages are copied only when written. Raises OutOfSlots."""
        self._trim()
        draft = None if self.draft is None else self.draft.share()
        other = SequenceState(self._pool, self._kv, self._recurrent, draft)
        if self._recurrent is not None and self.slot is not None:
            other.slot = self._recurrent.copy_of(self.slot)
        self._pool.share(self.pages)
        other.pages = list(self.pages)
        other.length = self.length
        return other

    def release(self) -> None:
        """Give every page, slot and ring back; the state is empty afterwards."""
        self.rollback(0)
        self.drop_draft()

    def drop_draft(self) -> None:
        """Give the drafter's ring back: costs speed, never text."""
        if self.draft is not None:
            self.draft.close()
            self.draft = None

    def export(self) -> Snapshot:
        self._trim()
        blob = []
        if self._recurrent is not None and self.slot is not None:
            blob = self._recurrent.export(self.slot)
        return Snapshot(
            layout=self._layout,
            length=self.length,
            kv=self._kv.export(self.pages),
            recurrent=blob,
            draft=None if self.draft is None else self.draft.export(),
        )

    def import_(self, snapshot: Snapshot) -> None:
        """Replace this state by a snapshot. Raises OutOfPages when the pool cannot hold it."""
        if snapshot.layout != self._layout:
            raise ConfigError(
                f"the snapshot was taken with layout {snapshot.layout}, this engine uses "
                f"{self._layout}; start it with the same model and cache types"
            )
        self.rollback(0)
        self.reserve(snapshot.length)
        self._kv.import_(self.pages, snapshot.kv)
        if self._recurrent is not None and self.slot is not None and snapshot.recurrent:
            self._recurrent.import_(self.slot, snapshot.recurrent)
        if self.draft is not None and snapshot.draft is not None:
            self.draft.import_(snapshot.draft)
        self.length = snapshot.length

    def slots_held(self) -> list[SlotId]:
        return [s for s in (self.slot, *self.captures.values()) if s is not None]

    def check(self) -> None:
        assert self.length <= len(self.pages) * PAGE_SIZE
        assert all(n <= self.length for n in self.captures)
        assert self.draft is None or self.draft.end <= self.length
        if self._recurrent is not None and self.length:
            assert self.slot is not None

    @property
    def _layout(self) -> str:
        extra = "" if self._recurrent is None else ";" + self._recurrent.layout
        return self._kv.layout + extra

    @property
    def _is_ahead(self) -> bool:
        """The slot may have been advanced beyond `length`."""
        return self._open is not None and self._open.in_place

    def _advance(self, path: Sequence[int]) -> Advance | None:
        """What the recurrent store must still do for this path."""
        if self._recurrent is None or not len(path):
            return None
        step, self._open = self._open, None
        assert step is not None, "a commit without a step"
        assert self.slot is not None
        if step.in_place:
            assert list(path) == list(range(step.count)), "the step has stored all of its tokens"
            return None
        assert step.number == self._recurrent.step, "another step has run since"
        return Advance(slot=self.slot, nodes=[step.first + node for node in path])

    def _adopt(self, path: Sequence[int]) -> list[tuple[int, int]]:
        """Count the path as stored; places from and to which that moves positions."""
        base = self.length
        moves = [
            (self.place(base + node), self.place(base + i))
            for i, node in enumerate(path)
            if node != i
        ]
        self.length += len(path)
        assert self.length <= len(self.pages) * PAGE_SIZE
        return moves

    def _rollback_slot(self, store: RecurrentStore, length: int) -> None:
        point = self.restore_point(length)
        if point != length:
            raise NotKept(
                f"the recurrent state at length {length} was not captured; the nearest that was is "
                f"{point}: go back there and compute the rest again"
            )
        if (length < self.length or self._is_ahead) and length and self.slot is not None:
            store.copy(self.captures[length], self.slot)
        self._open = None
        for n in [n for n in self.captures if n > length or not length]:
            store.free(self.captures.pop(n))
        if not length and self.slot is not None:
            store.free(self.slot)
            self.slot = None

    def _trim(self) -> None:
        self.rollback(self.length)

    def _written_at(self, count: int) -> list[tuple[int, PageId]]:
        """(index, page) of held pages that the next `count` positions fall into."""
        if not count:
            return []
        first, last = self.length // PAGE_SIZE, (self.length + count - 1) // PAGE_SIZE
        return list(enumerate(self.pages))[first : last + 1]

    def _written(self, count: int) -> list[PageId]:
        return [page for _, page in self._written_at(count)]


def adopt_all(rows: Sequence[tuple[SequenceState, Sequence[int]]]) -> Moves:
    """The host's part of `commit` for the rows of one step: states, and paths that were accepted."""
    some = rows[0][0]
    return Moves(
        kv=some._kv,
        recurrent=some._recurrent,
        advances=[a for state, path in rows if (a := state._advance(path)) is not None],
        places=[move for state, path in rows for move in state._adopt(path)],
    )
