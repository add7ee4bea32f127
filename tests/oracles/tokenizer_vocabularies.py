"""Vocabularies for tokenizer tests: synthetic SentencePiece ones, and one read from a tokenizer.json."""

import random
from typing import Any

from pydflash.text.vocabulary import Vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_LETTERS = ["a", "b", "c", "d", "é", "文", "▁", "\n"]
_PARTS = [*"abcdé文 \nx▁", "  ", "<s>", "<tool>", "</s", "👩", "\u0301", "ab  ", "<0x41>"]


def sentencepiece(seed: int) -> Vocabulary:
    """A small vocabulary full of equal scores, of tokens that span words, and without a newline token."""
    dice = random.Random(seed)
    rows: dict[str, tuple[int, float]] = {"<unk>": (UNKNOWN, 0.0)}
    rows |= {"<s>": (CONTROL, 0.0), "</s>": (CONTROL, 0.0)}
    rows |= {f"<0x{byte:02X}>": (BYTE, 0.0) for byte in range(256)}
    rows |= dict.fromkeys(_LETTERS[:-1], (NORMAL, -100.0))
    rows |= dict.fromkeys(("<tool>", "ab  ", "b▁"), (USER_DEFINED, 0.0))
    while len(rows) < 420:
        size = 2 + int(dice.random() * 4)
        text = "".join(_LETTERS[int(dice.random() * len(_LETTERS))] for _ in range(size))
        if text not in rows:
            kind = NORMAL if dice.random() < 0.95 else UNUSED
            rows[text] = (kind, -1.0 - int(dice.random() * 6))
    policy = (None, True, False)
    return Vocabulary(
        model="llama",
        pre=None,
        tokens=list(rows),
        token_types=[kind for kind, _ in rows.values()],
        scores=[score for _, score in rows.values()],
        merges=None,
        bos=1,
        eos=2,
        eot=None,
        eog=(2,),
        pad=None,
        unk=0,
        add_bos=policy[seed % 3],
        add_eos=None,
        add_space_prefix=policy[seed // 3 % 3],
    )


def sentencepiece_strings(seed: int) -> list[str]:
    """2,000 strings over the alphabet of those vocabularies, and some characters beyond it."""
    dice = random.Random(1000 + seed)
    return [
        "".join(_PARTS[int(dice.random() * len(_PARTS))] for _ in range(int(dice.random() * 40)))
        for _ in range(2_000)
    ]


def from_tokenizer_json(data: dict[str, Any], *, pre: str, eos: str) -> Vocabulary:
    """The vocabulary a GGUF conversion of a byte-level `tokenizer.json` carries."""
    ids: dict[str, int] = dict(data["model"]["vocab"])
    kinds: dict[str, int] = {}
    for added in data["added_tokens"]:
        ids[added["content"]] = added["id"]
        kinds[added["content"]] = CONTROL if added["special"] else USER_DEFINED
    texts = {token: text for text, token in ids.items()}
    tokens = [texts.get(token, f"[PAD{token}]") for token in range(max(texts) + 1)]
    merges = [
        merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]
    ]
    return Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=tokens,
        token_types=[kinds.get(text, NORMAL if text in ids else UNUSED) for text in tokens],
        scores=None,
        merges=merges,
        bos=None,
        eos=ids[eos],
        eot=None,
        eog=(ids[eos],),
        pad=None,
        unk=None,
        add_bos=False,
        add_eos=None,
        add_space_prefix=None,
    )
