"""A small real byte-level BPE vocabulary: specials, 256 bytes, merges learnt from a few sentences."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENDOFTEXT, IM_START, IM_END = range(3)
THINK = ("<think>", "</think>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_TEXT = """the quick brown fox jumps over the lazy dog and then the other dogs run after the fox
def read(self, name): return self.values[name] if name in self.values else None
a model reads text and writes text; the text is made of tokens and tokens are made of bytes
import the module, print the answer, and return to the start of the loop when there is more"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyVocabulary:
    """Lists for the `tokenizer.ggml.*` keys."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


def byte_chars() -> list[str]:
    """The printable stand-in of each byte, as GPT-2's byte-level BPE writes them."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(spare)) for b in range(256)]


def tiny_vocabulary(size: int = 320) -> TinyVocabulary:
    """`size` tokens: 3 specials, 256 bytes, two user-defined tags, then merges, padded with unused ones."""
    fixed = len(SPECIALS) + 256 + len(THINK)
    if size < fixed:
        raise ValueError(f"a byte-level vocabulary needs at least {fixed} tokens")
    chars = byte_chars()
    merges, merged = _learn(chars, size - fixed)
    tokens = [*SPECIALS, *chars, *merged]
    types = [CONTROL] * len(SPECIALS) + [NORMAL] * (len(tokens) - len(SPECIALS))
    unused = size - len(tokens) - len(THINK)
    tokens += [f"[PAD{i}]" for i in range(unused)]
    types += [UNUSED] * unused
    return TinyVocabulary(
        tokens=[*tokens, *THINK], types=types + [USER_DEFINED] * len(THINK), merges=merges
    )


def _learn(chars: list[str], count: int) -> tuple[list[str], list[str]]:
    words = Counter(
        tuple(chars[b] for b in (" " * bool(i) + word).encode())
        for line in _TEXT.splitlines()
        for i, word in enumerate(line.split())
    )
    merges: list[str] = []
    merged: list[str] = []
    while len(merged) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        joined = best[0] + best[1]
        merges.append(" ".join(best))
        if joined not in merged:
            merged.append(joined)
        words = Counter({_apply(word, best): times for word, times in words.items()})
    return merges, merged


def _apply(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)
