"""SequenceState: what the engine remembers of one sequence, and the verbs that move it.

Invariant: `length` positions are stored; pages cover at least them; a page that more than one sequence
holds is never written. Positions beyond `length` are scratch that the next commit may adopt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pydflash.errors import ConfigError
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.state.kv import KvStore
from pydflash.state.pages import PageId, PagePool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A sequence's state on the host, tagged with the layout it needs."""

    layout: str
    length: int
    kv: list[torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.kv)


class SequenceState:
    """One sequence's pages and length."""

    def __init__(self, pool: PagePool, kv: KvStore) -> None:
        self._pool = pool
        self._kv = kv
        self.pages: list[PageId] = []
        self.length = 0

    def pages_wanted(self, count: int) -> int:
        """Pages that `reserve(count)` would take from the pool."""
        last = (self.length + count - 1) // PAGE_SIZE if count else -1
        fresh = max(0, last + 1 - len(self.pages))
        return fresh + sum(self._pool.is_shared(p) for p in self._written(count))

    def reserve(self, count: int) -> None:
        """Make the next `count` positions writable. Raises OutOfPages and changes nothing if it cannot."""
        shared = [i for i, p in self._written_at(count) if self._pool.is_shared(p)]
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
        return self.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE

    def extend(self, count: int) -> None:
        """The next `count` positions were stored in order."""
        self.length += count
        assert self.length <= len(self.pages) * PAGE_SIZE

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of `path`, stored at length + node, as the next positions in order."""
        base = self.length
        moves = [(base + node, base + i) for i, node in enumerate(path) if node != i]
        self._kv.copy([self.place(a) for a, _ in moves], [self.place(b) for _, b in moves])
        self.extend(len(path))

    def rollback(self, length: int) -> None:
        """Forget everything from position `length` on."""
        assert 0 <= length <= self.length
        self.length = length
        keep = -(-length // PAGE_SIZE)
        self._pool.free(self.pages[keep:])
        del self.pages[keep:]

    def share(self) -> "SequenceState":
        """A second sequence with the same past; pages are copied only when written."""
        self._trim()
        other = SequenceState(self._pool, self._kv)
        self._pool.share(self.pages)
        other.pages = list(self.pages)
        other.length = self.length
        return other

    def release(self) -> None:
        """Give every page back; the state is empty afterwards."""
        self.rollback(0)

    def export(self) -> Snapshot:
        self._trim()
        return Snapshot(layout=self._kv.layout, length=self.length, kv=self._kv.export(self.pages))

    def import_(self, snapshot: Snapshot) -> None:
        """Replace this state by a snapshot. Raises OutOfPages when the pool cannot hold it."""
        if snapshot.layout != self._kv.layout:
            raise ConfigError(
                f"the snapshot was taken with layout {snapshot.layout}, this engine uses "
                f"{self._kv.layout}; start it with the same model and cache types"
            )
        self.release()
        self.reserve(snapshot.length)
        self._kv.import_(self.pages, snapshot.kv)
        self.length = snapshot.length

    def check(self) -> None:
        assert self.length <= len(self.pages) * PAGE_SIZE

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
