"""Begun and Waiting: a draft that the device works at, and one that waits while other work passes by."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from pydflash.draft.base import I32, DraftScores
from pydflash.draft.heads import Candidates, Head
from pydflash.kernels.ops import Guesses
from pydflash.kernels.upload import Array, Fetch, fetch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A draft that the device works at.

    `found`: hidden states f32 [R * slots, E] before the last norm and what `top` gives of their logits;
    `guesses`: what the head makes of them, if it was asked to and can. All are good until the device works
    at another draft.
    """

    head: Head
    tokens: I32 | None  # target ids by draft ids; None: they are the same
    rows: int
    live: list[int]  # those that are drafted
    anchors: list[int]  # theirs
    slots: int
    top_k: int
    found: list[Tensor]
    guesses: Guesses | None

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
        return self._every(made)

    def scores_from(self, found: list[Array]) -> list[DraftScores]:
        """From `guesses`: tokens, log-probabilities and, where the head is conditional, those of pairs."""
        tokens, logp, *pair = found
        made = {
            i: DraftScores(tokens=tokens[r], logp=logp[r], pair=pair[0][r] if pair else None)
            for r, i in enumerate(self.live)
            if np.isfinite(logp[r, :, 0]).all()
        }
        return self._every(made)

    def _every(self, made: dict[int, DraftScores]) -> list[DraftScores]:
        return [made[i] if i in made else DraftScores.nothing() for i in range(self.rows)]


class Waiting:
    """A draft under way, in copies of its own: whatever is drafted next does not show in it.

    `guesses`: of all its rows in order, on the device, good until another draft begins; None where some row
    is not drafted or the host has to look at them first.
    """

    def __init__(self, begun: Begun) -> None:
        self._begun = begun
        made = begun.guesses
        self.guesses = made if len(begun.live) == begun.rows else None
        if made is not None:
            assert made.logp is not None
            self._found = Fetch([t for t in (made.tokens, made.logp, made.pair) if t is not None])
        else:
            self._found = Fetch(begun.found[1:])
            self._hidden = begun.found[0].clone()

    def scores(self) -> list[DraftScores]:
        found = self._found.arrays()
        if self._begun.guesses is not None:
            return self._begun.scores_from(found)
        return self._begun.scores_of(self._hidden, found)
