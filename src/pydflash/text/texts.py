"""TokenTexts: every token's spelling in one block of UTF-8; a list of strings takes ten times the memory."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import overload


class TokenTexts(Sequence[str]):
    """An immutable sequence of strings."""

    def __init__(self, texts: Sequence[str]) -> None:
        pieces = [text.encode("utf-8", "surrogatepass") for text in texts]
        self._block = b"".join(pieces)
        self._ends = array("I", accumulate(map(len, pieces), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        piece = self._block[self._ends[index] : self._ends[index + 1]]
        return piece.decode("utf-8", "surrogatepass")
