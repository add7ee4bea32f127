"""TokenMask: what a grammar lets a sequence say next. Host objects; who compiles grammars is not known here.

Invariant: the answer depends on the sequence's own tokens alone, never on how many of them one round drew.
That is why a constrained answer is the same with speculation on and off.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class TokenMask(Protocol):
    """One sequence's place in a grammar. `drawn` are the tokens after the last `commit`.

    A grammar that cannot go on (too complex, say) says so by an EngineError of `allowed`, which ends its own
    sequence only. Nothing else here raises.
    """

    def allowed(self, drawn: Sequence[int]) -> bytes | None:
        """The tokens that may follow: token t is bit t % 8 of byte t // 8. None: any may.

        A token that ends the text is among them only where the grammar may end.
        """

    def takes(self, drawn: Sequence[int]) -> int:
        """How many of these tokens, from the first on, the grammar would take."""

    def is_done(self, drawn: Sequence[int]) -> bool:
        """Is the text whole, so that nothing but an end may follow?"""

    def commit(self, drawn: Sequence[int]) -> None:
        """The sequence has said these tokens for good."""


class Grammar(Protocol):
    """A compiled constraint, shared by every request that has it."""

    def start(self) -> TokenMask:
        """The place before the first token, for a sequence of its own."""


def bits(mask: bytes, vocab_size: int) -> npt.NDArray[np.bool_]:
    """A mask as bool [vocab_size]; tokens that it does not reach are not allowed."""
    flags = np.unpackbits(np.frombuffer(mask, np.uint8), count=vocab_size, bitorder="little")
    return flags.view(np.bool_)
