"""Ask and Stretch: how rows of logits are to be drawn from. Host values only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydflash.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask:
    """How one row is drawn.

    `seed` is the resolved one (params.seed may be None), `position` the absolute position of the token
    being drawn, `generated` and `prompt` what came before it. `mask` has a bit for each token, set where
    allowed (sampling/mask.py); `ban` holds single ids that may not be drawn now (end of text before
    min_tokens). `settle` is told the token drawn, once, and says which one counts (mostly the same).
    """

    params: SamplingParams
    seed: int
    position: int
    generated: Sequence[int] = ()
    prompt: Sequence[int] = ()
    mask: bytes | None = None
    ban: frozenset[int] = frozenset()
    settle: Callable[[int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """Rows of one sequence: row `first + i` draws the token at position `ask.position + depth[i]`.

    Told before anything is drawn, so that a device can decide all rows of a step at once.
    """

    ask: Ask
    first: int
    depth: Sequence[int]
