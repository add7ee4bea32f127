"""Forced: a real proposer whose trees are overwritten along one path by an answer that is already known.

Drafting, the tree and its verification cost what they cost; only how much is accepted is arranged. What is
measured so must say so.
"""

from collections.abc import Sequence

from pydflash.draft.base import Context, DraftRow
from pydflash.kernels.upload import ints
from pydflash.spec.grown import Grown
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Outcome, Proposer, Spent


class Forced:
    """Makes `length` tokens a round accepted in the mean, the round's own draw included."""

    def __init__(self, inner: Proposer, known: Sequence[int], start: int, length: float) -> None:
        """`known`: the tokens after a prompt of `start`, as plain decoding gives them."""
        self.inner = inner
        self._known = known
        self._start = start
        self._length = length
        self._owed = 0.0

    @property
    def max_nodes(self) -> int:
        return self.inner.max_nodes

    @property
    def taps(self) -> tuple[int, ...]:
        return self.inner.taps

    def grown(self, rows: Sequence[DraftRow], limit: int) -> Grown | None:
        """The device's trees, which begin with a path through every slot (`chain_seed`)."""
        made = self.inner.grown(rows, limit)
        if made is not None:
            for r, row in enumerate(rows):
                nodes = min(self._due() - 1, made.nodes - 1)
                known = self._known[len(row.tokens) - self._start :][:nodes]
                device = made.trees.tokens.device
                made.trees.tokens[r, 1 : 1 + len(known)] = ints(known, device)
            made.send()
        return made

    def propose(self, rows: Sequence[DraftRow], beside: int = 0) -> list[Proposal]:
        made = self.inner.propose(rows, beside)
        return [self._forced(row, one) for row, one in zip(rows, made, strict=True)]

    def settle(
        self, contexts: Sequence[Context], outcomes: Sequence[Outcome], spent: Spent
    ) -> None:
        self.inner.settle(contexts, outcomes, spent)

    def prepare(self, rows: Sequence[DraftRow], beside: int = 0, *, grow: bool = True) -> None:
        self.inner.prepare(rows, beside, grow=grow)

    def _forced(self, row: DraftRow, made: Proposal) -> Proposal:
        known = self._known[len(row.tokens) - self._start :]
        return overwritten(made, known, self._due() - 1)

    def _due(self) -> int:
        """Tokens of this round."""
        self._owed += self._length
        tokens = int(self._owed)
        self._owed -= tokens
        return tokens


def overwritten(made: Proposal, known: Sequence[int], nodes: int) -> Proposal:
    """The tree with `nodes` nodes of a path from the root on carrying `known`, and no node that goes on.

    A tree that is not so deep carries as many as it can.
    """
    deepest = max(range(len(made.tokens)), key=lambda node: made.depth[node])
    path = made.path(deepest)[: nodes + 1]
    if len(known) < len(path):
        return made
    tokens = list(made.tokens)
    for node, token in zip(path[1:], known, strict=False):
        tokens[node] = token
    after = {node: known[at] for at, node in enumerate(path)}
    for node in range(1, len(tokens)):
        parent = made.parents[node]
        if node not in path and tokens[node] == after.get(parent):
            tokens[node] = tokens[node] - 1 if tokens[node] else 1
    return Proposal(tuple(tokens), made.parents, made.depth)
