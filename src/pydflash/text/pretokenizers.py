"""Pre-tokenizers by their GGUF name: how a text is cut into words before byte-pair merging.

Each entry is the model family's own `tokenizer.json`, written as a sequence of isolating splits.
Invariant: a name stands here only when its cut is known exactly; any other name is refused.
"""

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from pydflash.errors import UnsupportedError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{{digits}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
_LLAMA3 = _WORDS.replace("{digits}", r"\p{N}{1,3}")
_QWEN2 = _WORDS.replace("{digits}", r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizerSpec:
    """What one GGUF `tokenizer.ggml.pre` name means beside the cut itself."""

    splits: tuple[str, ...]  # regular expressions, applied one after the other
    single_digits: bool = False  # every digit is a word of its own, before the splits
    nfc: bool = False  # text is normalised to NFC first (Qwen's own tokenizer.json says so)
    ignore_merges: bool = False  # a word that is a token as a whole is not merged from parts
    add_bos: bool = False  # what holds when the file does not say

    def build(self) -> PreTokenizer:
        """The cut, ending in the byte-level alphabet."""
        parts: list[PreTokenizer] = [Digits(individual_digits=True)] if self.single_digits else []
        parts += [Split(Regex(pattern), behavior="isolated") for pattern in self.splits]
        parts.append(ByteLevel(add_prefix_space=False, use_regex=False))
        return Sequence(parts)


_GPT2_SPEC = PreTokenizerSpec(splits=(_GPT2,))
_LLAMA3_SPEC = PreTokenizerSpec(splits=(_LLAMA3,), ignore_merges=True, add_bos=True)

SPECS: dict[str, PreTokenizerSpec] = {
    "default": PreTokenizerSpec(splits=_DEFAULT),
    "gpt-2": _GPT2_SPEC,
    "smollm": PreTokenizerSpec(splits=(_GPT2,), single_digits=True),
    "llama-bpe": _LLAMA3_SPEC,
    "llama-v3": _LLAMA3_SPEC,
    "llama3": _LLAMA3_SPEC,
    "qwen2": PreTokenizerSpec(splits=(_QWEN2,), nfc=True),
    "qwen35": PreTokenizerSpec(splits=(_QWEN35,), nfc=True),
    "deepseek-v3": PreTokenizerSpec(splits=_DEEPSEEK_V3),
}


def pretokenizer_spec(pre: str | None) -> PreTokenizerSpec:
    """The spec of a GGUF `tokenizer.ggml.pre` name; None or "" means "default".

    Raises UnsupportedError for a name not in SPECS.
    """
    spec = SPECS.get(pre or "default")
    if spec is None:
        known = ", ".join(sorted(SPECS))
        raise UnsupportedError(
            f"the pre-tokenizer {pre!r} is not known to this build; known are: {known}"
        )
    return spec
