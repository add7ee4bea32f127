"""Drafter: what guesses a row's next tokens, and DraftScores: its guesses as numbers. No tensors here.

A drafter never decides anything: `spec` turns scores into trees, the target settles them.
Letters: S drafted positions (slots), K candidates of a slot, best first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pydflash.kernels.ops import Guesses

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftScores:
    """Natural-log probabilities (temperature 1) of a row's next positions; slot s is position base + 1 + s.

    tokens int32 [S, K], distinct within a slot, by descending logp; logp f32 [S, K], their marginals.
    pair f32 [S, K, K] for conditional heads: pair[s, i, j] is the log-probability of candidate j of slot
    s after candidate i of slot s - 1; slot 0 follows the anchor, so its rows are all the same. Where
    `pair` is given, `logp` is what the most likely path gives and trees are scored by `pair`.
    """

    tokens: I32
    logp: F32
    pair: F32 | None = None

    @property
    def slots(self) -> int:
        return len(self.tokens)

    @classmethod
    def nothing(cls) -> "DraftScores":
        """No guess at all."""
        return cls(tokens=np.empty((0, 0), np.int32), logp=np.empty((0, 0), np.float32))


class Context(Protocol):
    """A sequence's drafter state (`state.ring`), as far as the engine and `spec` know it."""

    @property
    def num_pending(self) -> int:
        """Positions whose features wait to be taken in."""

    def append(self, position: int, features: Any) -> None:
        """Give it the target's features, a tensor f32 [n, taps * E], of positions position.."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """One sequence to draft for: all its tokens, the last one pending (the anchor, at len(tokens) - 1)."""

    tokens: Sequence[int]
    context: Context | None = None
    fresh: bool = False  # no round has been drafted for it yet


class Started(Protocol):
    """A draft under way."""

    guesses: "Guesses | None"
    """Its scores of all rows on the device, if they were asked for and can be; good until the next draft
    begins. The host's `scores` are then these."""

    def scores(self) -> list[DraftScores]:
        """What `Drafter.score` gives, once it is there. To be called once."""


class Drafter(Protocol):
    """Proposes scores. The engine never asks which kind it is."""

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int:
        """The most positions it drafts in one round."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Target layers whose outputs it conditions on, ascending; none for a look-up."""

    def catch_up(self, contexts: Sequence[Context]) -> None:
        """Take in the target features that wait in these contexts."""

    def score(self, rows: Sequence[DraftRow], slots: int, top_k: int) -> list[DraftScores]:
        """At most `slots` positions of at most `top_k` candidates each, for every row."""

    def start(
        self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
    ) -> Started | None:
        """Begin `score` without waiting for it; it may be left alone, and other drafts may follow at once.

        `guess`: score on the device, if that can be. None where the host would do the work itself, so that
        nothing is gained by beginning early.
        """
