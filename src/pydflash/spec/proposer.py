"""Proposer: where a round's proposals come from. The engine never asks which kind it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydflash.draft.base import Context, DraftRow
from pydflash.spec.grown import Grown
from pydflash.spec.proposal import Proposal
from pydflash.spec.stats import DraftStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one row's proposal: accepted nodes from the root on, and the tokens drawn at each.

    `position` is the root's. A row whose draw failed at once drew nothing.
    """

    proposal: Proposal
    rows: int  # of the step, that were kept for it
    position: int
    path: Sequence[int]
    drawn: Sequence[int]
    stats: DraftStats  # the sequence's


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a step cost: seconds, and the tokens it held."""

    draft_s: float  # for which the engine was kept, what was begun a step earlier included
    step_s: float
    rows: int  # exact ones, those without a proposal too
    prefill: int  # of a prompt


class Proposer(Protocol):
    """Proposes what may follow each row's tokens. A round asks for `grown` first, then for `propose`."""

    @property
    def max_nodes(self) -> int:
        """The most nodes a proposal of this proposer has."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs the contexts are to be given, ascending."""

    def grown(self, rows: Sequence[DraftRow], limit: int) -> Grown | None:
        """The trees of a step for these rows alone, if a device is growing them; of at most `limit` nodes.

        None: `propose`.
        """

    def propose(self, rows: Sequence[DraftRow], beside: int = 0) -> list[Proposal]:
        """A proposal for each row, its root being the row's last (pending) token.

        `beside`: tokens that the step decodes or recomputes besides, for rows that take no drafts.
        """

    def settle(
        self, contexts: Sequence[Context], outcomes: Sequence[Outcome], spent: Spent
    ) -> None:
        """Learn how a round ended. `contexts` are those that were given features."""

    def prepare(self, rows: Sequence[DraftRow], beside: int = 0, *, grow: bool = True) -> None:
        """The next `propose` is likely to be for these rows: begin what need not be waited for.

        `grow`: trees, too, that nobody needs to see before they are verified.
        Called before `settle`. If other rows come instead, what was begun is for nothing.
        """


class PlainProposer:
    """Plain decoding: the pending token alone."""

    max_nodes = 1
    taps = ()

    def grown(self, rows: Sequence[DraftRow], limit: int) -> None:
        pass

    def propose(self, rows: Sequence[DraftRow], beside: int = 0) -> list[Proposal]:
        return [Proposal.root(row.tokens[-1]) for row in rows]

    def settle(
        self, contexts: Sequence[Context], outcomes: Sequence[Outcome], spent: Spent
    ) -> None:
        pass

    def prepare(self, rows: Sequence[DraftRow], beside: int = 0, *, grow: bool = True) -> None:
        pass
