"""PrefixIndex: which token prefixes have stored state, page by page. Host integers only.

A tree: a node is one page of tokens after its parent's; one of fewer tokens ends a turn and has no children.
One can start from a node on the prefill grid or at the end of a turn, and, where layers are recurrent, only
with a slot there. Invariants: every leaf can be started from; a node is exact (what a cold prefill of its
tokens stores) only if its parent is; no node was used later than its parent.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from pydflash.state.pages import PageId, PagePool


class Node:
    """One page of a prefix. `length` tokens end with it."""

    __slots__ = ("children", "end", "exact", "length", "page", "parent", "slot", "tails", "tokens")

    def __init__(self, tokens: tuple[int, ...], parent: "Node | None", page: PageId) -> None:
        self.tokens = tokens
        self.parent = parent
        self.page = page
        self.length: int = (0 if parent is None else parent.length) + len(tokens)
        self.exact = False
        self.end = False  # a turn ended here
        self.slot: int | None = None  # the recurrent state after these tokens
        self.children: dict[tuple[int, ...], Node] = {}  # whole pages
        self.tails: dict[tuple[int, ...], Node] = {}  # less than a page

    @property
    def is_leaf(self) -> bool:
        return not self.children and not self.tails

    def path(self) -> "list[Node]":
        """The nodes from the first page to this one."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class PrefixIndex:
    """Holds pages of `pool` for the prefixes it knows. Least recently used goes first, leaves before the
    pages they stand on, and what nothing can be started from goes with them."""

    def __init__(
        self,
        pool: PagePool,
        *,
        page_size: int,
        grid: int,
        needs_slot: bool,
        dropped: Callable[[Node], None],
    ) -> None:
        """`grid`: tokens of a prefill chunk, a multiple of `page_size`. `dropped` is told of each node that
        leaves or is replaced by an exact one: its slot and all else that hangs on it are the caller's."""
        assert grid % page_size == 0
        self._pool = pool
        self._size = page_size
        self._grid = grid
        self._needs_slot = needs_slot
        self._dropped = dropped
        self._root = Node((), None, PageId(-1))
        self._order: OrderedDict[Node, None] = OrderedDict()  # least recently used first
        self._slots: OrderedDict[Node, None] = OrderedDict()  # those with a slot, in the same order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Node]:
        """Least recently used first."""
        return iter(self._order)

    def can_start(self, node: Node) -> bool:
        """Whether a sequence may go on from here."""
        has_state = node.slot is not None or not self._needs_slot
        return has_state and (node.end or node.length % self._grid == 0)

    def find(self, tokens: Sequence[int], *, exact: bool = False) -> Node | None:
        """The longest prefix of `tokens` to start from, now the latest used. `exact`: of those alone that a
        cold prefill would repeat."""
        path = self._walk(tokens)
        for node in [*path[::-1], self._root]:
            rest = tuple(tokens[node.length : node.length + self._size - 1])
            tails = (t for t in node.tails.values() if t.tokens == rest[: len(t.tokens)])
            ends = sorted(tails, key=lambda t: -t.length)
            for found in [*ends, node]:
                if found is not self._root and self.can_start(found) and (found.exact or not exact):
                    self._touch(found.path())
                    return found
        return None

    def get(self, tokens: Sequence[int]) -> Node | None:
        """The node of exactly these tokens, its use unchanged."""
        path = self._walk(tokens)
        node = path[-1] if path else self._root
        rest = tuple(tokens[node.length :])
        return node.tails.get(rest) if rest else node

    def insert(
        self,
        tokens: Sequence[int],
        pages: Sequence[PageId],
        *,
        exact: bool,
        end: bool = False,
        slot: int | None = None,
    ) -> Node:
        """Know `tokens`, stored in `pages`, which somebody holds now. Pages of prefixes known already stay
        as they are, unless exact ones can replace others.

        `slot` becomes the last node's, where that one has none (of its own exactness): the caller looks.
        One must be able to start from the last node.
        """
        node, path = self._root, list[Node]()
        for i, page in enumerate(pages):
            piece = tuple(tokens[i * self._size : (i + 1) * self._size])
            node = self._step(node, piece, page, exact=exact)
            path.append(node)
        assert node.length == len(tokens)
        node.end |= end
        if slot is not None and node.slot is None and node.exact == exact:
            node.slot = slot
            self._slots[node] = None
        assert self.can_start(node) or not node.is_leaf, "nothing could start from this prefix"
        self._touch(path)
        return node

    def oldest_slot(self) -> Node | None:
        """The node whose slot was used longest ago, the deepest of a path first."""
        return next(iter(self._slots), None)

    def take_slot(self, node: Node) -> int:
        """A node's slot becomes the caller's; what could only be started from there is forgotten."""
        slot, node.slot = node.slot, None
        assert slot is not None
        del self._slots[node]
        self._prune(node)
        return slot

    def evict(self) -> bool:
        """Forget the least recently used leaf whose page nobody else holds, or else any. False: empty."""
        if not self._order:
            return False
        idle = (n for n in self._order if n.is_leaf and not self._pool.is_shared(n.page))
        self._forget(victim := next(idle, next(iter(self._order))))
        if victim.parent is not None:
            self._prune(victim.parent)
        return True

    def drop(self, tokens: Sequence[int]) -> None:
        """Forget every prefix that shares its first page with `tokens`."""
        first = self._walk(tokens)[:1]
        below = [n for n in self._order if first and n.path()[0] is first[0]]
        for node in below:  # in order of use: leaves come first
            self._forget(node)

    def clear(self) -> None:
        while self.evict():
            pass

    def check(self) -> None:
        """Assert the invariants."""
        seen = 0
        stack = [self._root]
        age = {node: i for i, node in enumerate(self._order)}
        while stack:
            node = stack.pop()
            for piece, child in [*node.children.items(), *node.tails.items()]:
                seen += 1
                assert child.tokens == piece
                assert child.parent is node
                assert child.length == node.length + len(piece)
                assert (len(piece) == self._size) == (piece in node.children)
                assert child.is_leaf <= self.can_start(child), "a leaf nothing can start from"
                if node is not self._root:
                    assert age[child] < age[node], "a child used later than its parent"
                    assert child.exact <= node.exact, "an exact page after one that is not"
                stack.append(child)
        assert seen == len(self._order)
        assert list(self._slots) == [n for n in self._order if n.slot is not None]
        assert len({n.page for n in self._order}) == seen, "two prefixes in one page"

    def _walk(self, tokens: Sequence[int]) -> list[Node]:
        """The nodes of whole pages that begin `tokens`."""
        node, path = self._root, list[Node]()
        for start in range(0, len(tokens) - self._size + 1, self._size):
            child = node.children.get(tuple(tokens[start : start + self._size]))
            if child is None:
                break
            path.append(node := child)
        return path

    def _step(self, node: Node, piece: tuple[int, ...], page: PageId, *, exact: bool) -> Node:
        """The child of `node` for `piece`, made or made exact if need be."""
        kin = node.children if len(piece) == self._size else node.tails
        child = kin.get(piece)
        if child is None:
            for tail in [t for t in node.tails if t == piece[: len(t)]]:
                self._forget(node.tails[tail])  # that turn went on: here it is, longer
            child = kin[piece] = Node(piece, node, page)
            self._order[child] = None
            self._pool.keep(page)
            child.exact = exact
        elif exact and not child.exact:
            self._let_go(child)
            child.slot, child.page, child.exact = None, page, True
            self._pool.keep(page)
        return child

    def _touch(self, path: Sequence[Node]) -> None:
        for node in reversed(path):
            self._order.move_to_end(node)
            if node.slot is not None:
                self._slots.move_to_end(node)

    def _prune(self, node: Node) -> None:
        """Forget a leaf that nothing can start from, and so on up."""
        while node.parent is not None and node.is_leaf and not self.can_start(node):
            parent = node.parent
            self._forget(node)
            node = parent

    def _forget(self, node: Node) -> None:
        assert node.is_leaf
        assert node.parent is not None
        kin = node.parent.children if len(node.tokens) == self._size else node.parent.tails
        del kin[node.tokens]
        del self._order[node]
        self._let_go(node)

    def _let_go(self, node: Node) -> None:
        """Give back what a node holds."""
        self._slots.pop(node, None)
        self._pool.drop(node.page)
        self._dropped(node)
