"""Proposal: a tree of candidate tokens below the pending one. Host integers only.

Node 0 is the root, the pending token itself. Topological order: a parent precedes its children.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

from pydflash.errors import EngineError


@dataclass(frozen=True, slots=True)
class Proposal:
    """tokens, parents (-1 for the root) and depth of N nodes; a node's position is base + depth.

    Raises EngineError for anything but a tree in topological order.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depth: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not count or count != len(self.parents) or count != len(self.depth):
            raise EngineError(
                f"a proposal of {count} tokens with {len(self.parents)} parents and "
                f"{len(self.depth)} depths; each node has one of each, and there is a root"
            )
        if self.parents[0] != -1 or self.depth[0] != 0:
            raise EngineError("a proposal's node 0 is its root: parent -1 and depth 0")
        for node in range(1, count):
            parent = self.parents[node]
            if not 0 <= parent < count:
                raise EngineError(f"node {node} of a proposal has no node {parent} for its parent")
            if parent >= node:
                raise EngineError(self._disorder(node))
            if self.depth[node] != self.depth[parent] + 1:
                raise EngineError(
                    f"node {node} of a proposal has depth {self.depth[node]} under a parent of depth "
                    f"{self.depth[parent]}"
                )

    @classmethod
    def root(cls, token: int) -> "Proposal":
        """Plain decoding: the pending token alone."""
        return cls((token,), (-1,), (0,))

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "Proposal":
        """The degenerate tree: every node has one child."""
        n = len(tokens)
        return cls(tuple(tokens), tuple(range(-1, n - 1)), tuple(range(n)))

    def first(self, count: int) -> "Proposal":
        """The first `count` nodes, themselves a tree."""
        if len(self.tokens) <= count:
            return self
        return Proposal(self.tokens[:count], self.parents[:count], self.depth[:count])

    def only(self, kept: Set[int]) -> "Proposal":
        """The tree of these nodes; with each of them its parent is kept, and so is the root."""
        if len(kept) == len(self.tokens):
            return self
        old = sorted(kept)
        new = {node: at for at, node in enumerate(old)}
        return Proposal(
            tuple(self.tokens[node] for node in old),
            tuple(new[self.parents[node]] if node else -1 for node in old),
            tuple(self.depth[node] for node in old),
        )

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def children(self) -> dict[tuple[int, int], int]:
        """Every node but the root by its parent and its token, the first of equals."""
        nodes = range(len(self.tokens) - 1, 0, -1)
        return {(self.parents[node], self.tokens[node]): node for node in nodes}

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to `node`."""
        out = []
        while node >= 0:
            out.append(node)
            node = self.parents[node]
        return out[::-1]

    def _disorder(self, node: int) -> str:
        """Why a parent is not before its child."""
        at = self.parents[node]
        for _ in self.tokens:
            if at == node:
                return f"node {node} of a proposal is its own ancestor: parents form a cycle"
            if at < 0:
                break
            at = self.parents[at]
        return (
            f"node {node} of a proposal comes before its parent {self.parents[node]}; "
            "parents must precede their children"
        )
