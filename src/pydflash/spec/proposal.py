"""Proposal: a tree of candidate tokens below the pending one. Host integers only.

Node 0 is the root, the pending token itself. Topological order: a parent precedes its children.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proposal:
    """tokens, parents (-1 for the root) and depth of N nodes; a node's position is base + depth."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depth: tuple[int, ...]

    @classmethod
    def root(cls, token: int) -> "Proposal":
        """Plain decoding: the pending token alone."""
        return cls((token,), (-1,), (0,))

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "Proposal":
        """The degenerate tree: every node has one child."""
        n = len(tokens)
        return cls(tuple(tokens), tuple(range(-1, n - 1)), tuple(range(n)))

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`, if there is one."""
        for i in range(node + 1, len(self.tokens)):
            if self.parents[i] == node and self.tokens[i] == token:
                return i
        return None

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to `node`."""
        out = []
        while node >= 0:
            out.append(node)
            node = self.parents[node]
        return out[::-1]
