"""Vocabulary: what a tokenizer is built from, as plain lists (text/ reads no files)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The `tokenizer.ggml.*` keys of a GGUF file. `model` is "gpt2" (BPE) or "llama" (SentencePiece)."""

    model: str
    pre: str | None
    tokens: Sequence[str]
    token_types: (
        Sequence[int] | None
    )  # GGUF: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    bos: int | None
    eos: int | None
    eot: int | None
    eog: tuple[int, ...]  # every id that ends a turn, eos and eot among them
    pad: int | None
    unk: int | None
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
