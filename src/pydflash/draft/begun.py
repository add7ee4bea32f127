"""Begun and Waiting: a draft that the device works at, and one that waits while other work passes by."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from pydflash.draft.base import I32, DraftScores
from pydflash.draft.heads import Candidates, Head
from pydflash.kernels.upload import Array, Fetch, fetch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A draft that the device works at.

    `found`: hidden states f32 [R * slots, E] before the last norm and what `top` gives of their logits, good
    until the device works at another draft.
    """

    head: Head
    tokens: I32 | None  # target ids by draft ids; None: they are the same
    rows: int
    live: list[int]  # those that are drafted
    anchors: list[int]  # theirs
    slots: int
    top_k: int
    found: list[Tensor]

    def scores(self) -> list[DraftScores]:
        """The end of it, before the device is given anything else of this drafter's."""
        return self.scores_of(self.found[0], fetch(self.found[1:]))

    def scores_of(self, hidden: Tensor, found: list[Array]) -> list[DraftScores]:
        """From the hidden states, on the device, and the best logits, ids and totals, on the host."""
        best, ids, total = found
        made: dict[int, DraftScores] = {}
        for r, (i, anchor) in enumerate(zip(self.live, self.anchors, strict=True)):
            own = slice(r * self.slots, (r + 1) * self.slots)
            if not math.isfinite(total[own].sum()):
                continue  # a damaged context; its text goes on without drafts
            mine = ids[own]
            candidates = Candidates(
                anchor=anchor,
                hidden=hidden if len(self.live) == 1 else hidden[own],
                ids=mine,
                tokens=mine.astype(np.int32) if self.tokens is None else self.tokens[mine],
                logits=best[own],
                total=total[own],
            )
            made[i] = self.head.scores(candidates, self.top_k)
        return [made[i] if i in made else DraftScores.nothing() for i in range(self.rows)]


class Waiting:
    """A draft under way, in copies of its own: whatever is drafted next does not show in it."""

    def __init__(self, begun: Begun) -> None:
        self._begun = begun
        self._found = Fetch(begun.found[1:])
        self._hidden = begun.found[0].clone()

    def scores(self) -> list[DraftScores]:
        return self._begun.scores_of(self._hidden, self._found.arrays())
