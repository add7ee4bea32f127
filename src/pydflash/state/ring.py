"""RingContext: a drafter's keys and values for one sequence, the last so many positions of it.

The pages of a context form a ring: position p lies in page (p // PAGE_SIZE) mod n. Invariant: positions
first..length - 1 are stored and readable; features of positions length.. wait in `pending` until the drafter
takes them in. It may lag behind the target, it never runs ahead. Losing it costs speed, never text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pydflash.errors import CapacityError
from pydflash.kernels.ops import PAGE_SIZE, OpTable
from pydflash.state.base import PagedKVSpec
from pydflash.state.kv import KvStore
from pydflash.state.pages import PageId, PagePool

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSnapshot:
    """A context on the host: positions first..length - 1 and the features that were pending."""

    first: int
    length: int
    kv: list[Tensor]
    pending: Tensor | None

    @property
    def nbytes(self) -> int:
        waiting = 0 if self.pending is None else self.pending.nbytes
        return waiting + sum(t.nbytes for t in self.kv)


def ring_pages(window: int, tail: int) -> int:
    """Pages of one ring: the window, the block in flight, and the page that both share."""
    return -(-(window + tail) // PAGE_SIZE) + 1


class RingStore:
    """The drafter's pages for a fixed number of contexts. A block writes up to `tail` positions ahead."""

    def __init__(
        self,
        specs: Sequence[PagedKVSpec],
        *,
        contexts: int,
        window: int,
        tail: int,
        feature_size: int,
        kv_format: str,
        ops: OpTable,
        scratch: bool = False,
    ) -> None:
        """`scratch`: see KvStore."""
        self.window = window
        self.tail = tail
        self.feature_size = feature_size
        self.pages_each = ring_pages(window, tail)
        pages = contexts * self.pages_each
        self.kv = KvStore(specs, pages, kv_format, kv_format, ops, scratch=scratch)
        self._pool = PagePool(pages)

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    @property
    def capacity(self) -> int:
        """Positions a ring holds, those of a block in flight included."""
        return self.pages_each * PAGE_SIZE

    def open(self) -> "RingContext | None":
        """An empty context, or None when every ring is taken: that sequence goes without a drafter."""
        if self._pool.num_free < self.pages_each:
            return None
        return RingContext(self, self._pool.allocate(self.pages_each))

    def close(self, pages: list[PageId]) -> None:
        self._pool.free(pages)


class RingContext:
    """One sequence's drafter state."""

    def __init__(self, store: RingStore, pages: list[PageId]) -> None:
        self.store = store
        self.pages = pages
        self.first = 0
        self.length = 0
        self.pending: list[Tensor] = []  # f32 [n, feature_size] each, positions from `length` on
        self._written = 0  # one past the highest position ever written: older ones were overwritten

    @property
    def num_pending(self) -> int:
        return sum(len(p) for p in self.pending)

    @property
    def end(self) -> int:
        """One past the last position known, pending ones included."""
        return self.length + self.num_pending

    def place(self, position: int) -> int:
        """Physical place of a position."""
        return self.places(position, position + 1)[0]

    def places(self, start: int, end: int) -> list[int]:
        """Physical places of positions start..end - 1."""
        pages, count = self.pages, len(self.pages)
        return [
            pages[p // PAGE_SIZE % count] * PAGE_SIZE + p % PAGE_SIZE for p in range(start, end)
        ]

    def table(self, positions: int) -> list[PageId]:
        """The physical page of each logical page up to one that holds position `positions` - 1."""
        count = -(-positions // PAGE_SIZE)
        return (self.pages * (count // len(self.pages) + 1))[:count]

    def append(self, position: int, features: Tensor) -> None:
        """Features f32 [n, feature_size] of positions position.. of the target. A gap starts afresh."""
        if position != self.end:
            self.restart(position)
        self.pending.append(features)
        if self.num_pending > self.store.window:  # what would be overwritten at once
            end, latest = self.end, self.take()
            assert latest is not None
            self.restart(end - self.store.window)
            self.pending = [latest[-self.store.window :]]

    def take(self) -> Tensor | None:
        """The pending features, f32 [n, feature_size], for positions length..; the caller stores them
        and says so with `stored`."""
        if not self.pending:
            return None
        return self.pending[0] if len(self.pending) == 1 else torch.cat(self.pending)

    def stored(self, count: int) -> None:
        """The first `count` pending positions were written."""
        rest = None if count == self.num_pending else self.take()
        self.length += count
        self.writes(self.length)
        self.pending = [] if rest is None else [rest[count:]]

    def writes(self, end: int) -> None:
        """Positions below `end` are about to be written: what they overwrite is no longer readable."""
        self._written = max(self._written, end)
        self.first = min(self.length, max(self.first, self._written - self.store.capacity))

    def restart(self, position: int) -> None:
        """Know nothing before `position`."""
        self.first = self.length = self._written = position
        self.pending = []

    def rollback(self, length: int) -> None:
        """Forget everything from position `length` on."""
        if length >= self.end:
            return
        if length >= self.length:
            rest = self.take()
            self.pending = (
                [] if rest is None or length == self.length else [rest[: length - self.length]]
            )
            return
        self.pending = []
        self.length = length
        if length <= self.first:
            self.restart(length)

    def share(self) -> "RingContext | None":
        """A second context with the same past; None when no ring is free."""
        other = self.store.open()
        if other is None:
            return None
        span = self.first, self.length
        self.store.kv.copy(self.places(*span), other.places(*span))
        other.first, other.length, other._written = self.first, self.length, self.length
        other.pending = list(self.pending)
        return other

    def export(self) -> RingSnapshot:
        pending = self.take()
        return RingSnapshot(
            first=self.first,
            length=self.length,
            kv=self.store.kv.export(self.pages),
            pending=None if pending is None else pending.cpu(),
        )

    def import_(self, snapshot: RingSnapshot) -> None:
        """Become what `export` gave. Raises CapacityError for another ring size."""
        if len(snapshot.kv[0]) != len(self.pages):
            raise CapacityError(
                f"the drafter's snapshot has rings of {len(snapshot.kv[0])} pages, this engine's have "
                f"{len(self.pages)}; start it with the same drafter and --draft-ctx-max"
            )
        self.store.kv.import_(self.pages, snapshot.kv)
        self.first, self.length, self._written = snapshot.first, snapshot.length, snapshot.length
        waiting = snapshot.pending
        self.pending = [] if waiting is None else [waiting.to(self.store.kv.ops.device)]

    def close(self) -> None:
        """Give the ring back."""
        self.store.close(self.pages)
        self.pages = []
