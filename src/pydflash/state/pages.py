"""PagePool: which KV pages are free and how many sequences hold each. Host integers only.

Invariant: every page is either free or held at least once, never both. The prefix index is one holder among
others, but one that lets go when asked: pages that it alone holds are idle.
"""

from collections.abc import Iterable
from typing import NewType

from pydflash.errors import CapacityError

PageId = NewType("PageId", int)


class OutOfPages(CapacityError):
    """The pool is empty. The scheduler answers it by preempting; users only meet it through a bug."""


class PagePool:
    """A fixed number of pages, handed out lowest id first and shared by count."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = [PageId(i) for i in reversed(range(num_pages))]
        self._holders = [0] * num_pages
        self._kept: set[PageId] = set()  # held by the prefix index
        self.num_idle = 0  # kept, and held by nobody else

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[PageId]:
        """`count` pages held once each, or OutOfPages and nothing taken."""
        if count > len(self._free):
            raise OutOfPages(
                f"{count} KV pages wanted, {len(self._free)} of {self.num_pages} free; "
                "use --kv-pages, a smaller --max-ctx or fewer sequences"
            )
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: Iterable[PageId]) -> None:
        """One more holder for each page."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free"
            self.num_idle -= self._is_idle(page)
            self._holders[page] += 1

    def free(self, pages: Iterable[PageId]) -> None:
        """One holder fewer for each page; a page without holders is free again."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} freed twice"
            self._holders[page] -= 1
            self.num_idle += self._is_idle(page)
            if not self._holders[page]:
                self._free.append(page)

    def keep(self, page: PageId) -> None:
        """The prefix index holds this page, too."""
        assert page not in self._kept, f"page {page} is kept twice"
        self.share([page])
        self._kept.add(page)

    def drop(self, page: PageId) -> None:
        """The prefix index lets this page go."""
        self.num_idle -= self._is_idle(page)
        self._kept.remove(page)
        self.free([page])

    def is_shared(self, page: PageId) -> bool:
        return self._holders[page] > 1

    def check(self, held: Iterable[Iterable[PageId]]) -> None:
        """Assert that `held`, the page lists of all holders, explains every count."""
        counts = [0] * self.num_pages
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert self.num_idle == sum(self._is_idle(p) for p in self._kept)
        assert counts == self._holders, "page counts do not match their holders"
        assert sorted(self._free) == [p for p in range(self.num_pages) if not counts[p]]

    def _is_idle(self, page: PageId) -> bool:
        return self._holders[page] == 1 and page in self._kept
