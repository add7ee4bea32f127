"""Incremental decoding: text as tokens arrive, whole characters only, O(1) per token.

Invariant: the pushes plus the flush, joined, equal `Tokenizer.decode` of all tokens.
"""

import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydflash.text.tokenizer import Tokenizer


class Detokenizer:
    """Holds back the bytes of an unfinished UTF-8 character until it is whole or surely broken."""

    def __init__(
        self,
        tokenizer: "Tokenizer",
        *,
        skip_special: bool = False,
        continuing: bool = False,
        shown: Callable[[str], bool] | None = None,
    ) -> None:
        """`skip_special` and `continuing` as in `Tokenizer.decode`.

        `shown` says by a special token's text which of them are not skipped (`Format.shows`).
        """
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown = shown
        self._strip = tokenizer.strips_leading_space and not continuing
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes (often "", for a part of an emoji)."""
        special = self._tokenizer.is_special(token)
        piece = self._tokenizer.token_bytes(token)
        if special and self._skip_special and not self._shows(piece):
            return ""
        if self._strip and not special:
            piece, self._strip = piece.removeprefix(b" "), False
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left at the end: "" or U+FFFD for a character cut short. Ready for a new text."""
        return self._decoder.decode(b"", final=True)

    def _shows(self, piece: bytes) -> bool:
        return self._shown is not None and self._shown(piece.decode("utf-8", "replace"))
