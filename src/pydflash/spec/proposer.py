"""Proposer: where a round's proposals come from. The engine never asks which kind it is."""

from collections.abc import Sequence
from typing import Protocol

from pydflash.spec.proposal import Proposal


class Proposer(Protocol):
    """Proposes what may follow each row's tokens."""

    @property
    def max_nodes(self) -> int:
        """The most nodes a proposal of this proposer has."""

    def propose(self, histories: Sequence[Sequence[int]]) -> list[Proposal]:
        """A proposal for each row, its root being the last (pending) token of the row's history."""


class PlainProposer:
    """Plain decoding: the pending token alone."""

    max_nodes = 1

    def propose(self, histories: Sequence[Sequence[int]]) -> list[Proposal]:
        return [Proposal.root(history[-1]) for history in histories]
