"""SentencePiece merging by scores, with byte fallback (GGUF tokenizer model "llama").

The neighbouring pair whose concatenation has the highest score is merged first, the leftmost one
among equals, until no pair forms a token; characters that are no token become byte tokens.
Ranks per pair, as BPE libraries keep them, cannot express ties by position, hence our own merging.
Invariant: a text is cut into words only where no token of the vocabulary could span the cut, so
merging word by word (and remembering words) gives exactly what merging the whole text would.
"""

import heapq
import re
from collections.abc import Mapping, Sequence

SPACE = "▁"  # U+2581 stands for a space inside tokens
_CACHE_WORDS = 65_536
_CACHE_WORD_CHARS = 64


class SentencePieceModel:
    """Merges plain text (no special tokens) to token ids."""

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Sequence[float],
        byte_ids: Sequence[int | None],
        unk: int | None,
    ) -> None:
        """`scores` by token id; `byte_ids` has 256 entries, the token of each byte value or None."""
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        self._unk = unk
        self._cache: dict[str, tuple[int, ...]] = {}
        # Characters that some token has right before a space mark: no cut between those two.
        spanning = {pair[0] for pair in re.findall(f"[^{SPACE}\ud800]{SPACE}", "\ud800".join(ids))}
        unsafe = "".join(map(re.escape, sorted(spanning)))
        self._cut = re.compile(f"(?<=[^{SPACE}{unsafe}])(?={SPACE})")

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in which spaces are already written as U+2581."""
        tokens: list[int] = []
        for word in self._cut.split(text):
            known = self._cache.get(word)
            if known is None:
                known = tuple(self._merge(word))
                if len(word) <= _CACHE_WORD_CHARS and len(self._cache) < _CACHE_WORDS:
                    self._cache[word] = known
            tokens.extend(known)
        return tokens

    def token_id(self, text: str) -> int | None:
        """The id of the token written exactly so."""
        return self._ids.get(text)

    def _merge(self, word: str) -> list[int]:
        ids, scores = self._ids, self._scores
        pieces: list[str] = list(word)  # "" marks a piece merged into its left neighbour
        before = list(range(-1, len(pieces) - 1))
        after = [*range(1, len(pieces)), -1]
        heap: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right >= 0:
                joined = pieces[left] + pieces[right]
                token = ids.get(joined)
                if token is not None:
                    heapq.heappush(heap, (-scores[token], left, right, joined))

        for right in range(1, len(pieces)):
            offer(right - 1, right)
        while heap:
            _, left, right, joined = heapq.heappop(heap)
            # Pieces only grow or vanish, so equal lengths mean that neither has changed.
            if not (pieces[left] and pieces[right]):
                continue
            if len(pieces[left]) + len(pieces[right]) != len(joined):
                continue
            pieces[left], pieces[right] = joined, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])

        tokens: list[int] = []
        for piece in filter(None, pieces):
            token = ids.get(piece)
            if token is not None:
                tokens.append(token)
                continue
            for byte in piece.encode():
                fallback = self._byte_ids[byte]
                fallback = self._unk if fallback is None else fallback
                if fallback is not None:
                    tokens.append(fallback)
        return tokens
