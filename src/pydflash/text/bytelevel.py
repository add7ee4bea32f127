"""Byte-level BPE (GGUF tokenizer model "gpt2"): merging on the `tokenizers` library.

Invariant: every byte has a symbol, also where the vocabulary lacks one; such a symbol keeps its
neighbours apart while merging and is dropped from the result.
"""

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

from pydflash.errors import CheckpointError
from pydflash.text.pretokenizers import PreTokenizerSpec


def _alphabet() -> list[str]:
    """The character that stands for each byte value (printable Latin-1 as itself, then U+0100...)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


ALPHABET: tuple[str, ...] = tuple(_alphabet())
_BYTE_OF = {char: byte for byte, char in enumerate(ALPHABET)}


def alphabet_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; a token with other characters is plain UTF-8 text."""
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


class ByteLevelModel:
    """Merges plain text (no special tokens) to token ids."""

    def __init__(
        self, ids: Mapping[str, int], merges: Sequence[str], spec: PreTokenizerSpec
    ) -> None:
        """`merges` are "left right" strings in rank order. Raises CheckpointError on a bad merge."""
        vocab = dict(ids)
        self._first_missing = size = max(vocab.values(), default=-1) + 1
        for char in ALPHABET:
            if char not in vocab:
                vocab[char] = size
                size += 1
        self._complete = size == self._first_missing
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        try:
            model = BPE(vocab=vocab, merges=pairs, ignore_merges=spec.ignore_merges)  # type: ignore[arg-type]
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"the tokenizer's merges do not fit its vocabulary ({error}); "
                "the model file is damaged, fetch it again"
            ) from error
        self._backend = Backend(model)
        if spec.nfc:
            self._backend.normalizer = NFC()
        self._backend.pre_tokenizer = spec.build()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        tokens: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if self._complete:
            return tokens
        return [token for token in tokens if token < self._first_missing]

    def token_id(self, text: str) -> int | None:
        """The id of the token written exactly so."""
        token = self._backend.token_to_id(text)
        return token if token is not None and token < self._first_missing else None
