"""Tokenizer and Detokenizer on small vocabularies: round trips, special tokens, errors."""

import dataclasses
import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, trainers
from tokenizers.pre_tokenizers import ByteLevel

from pydflash.errors import CheckpointError, RequestError, UnsupportedError
from pydflash.text.bytelevel import ALPHABET
from pydflash.text.detokenizer import Detokenizer
from pydflash.text.pretokenizers import SPECS, pretokenizer_spec
from pydflash.text.tokenizer import Tokenizer
from pydflash.text.vocabulary import Vocabulary
from tests.oracles.tokenizer_vocabularies import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    sentencepiece,
    sentencepiece_strings,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
CORPUS = [
    "the quick brown fox jumps over the lazy dog, again and again: 12 times, 345 times.",
    "def read(self, name):\n    return self.values[name]\n\n",
    "naïve café, größer, Ελληνικά, русский язык, 日本語の文字, 👩‍👩‍👧 👍🏽",
]
SPECIALS = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL}
USERS = {"<think>": USER_DEFINED, "<think>>": USER_DEFINED}


def trained(pre: str = "smollm", **changes: object) -> Vocabulary:
    """A byte-level vocabulary with merges learnt by the reference trainer."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=list(ALPHABET)
    )
    backend.train_from_iterator(CORPUS * 3, trainer)
    ids = backend.get_vocab()
    learnt = sorted(ids, key=ids.__getitem__)
    # The trainer keeps merges to itself; each learnt token names one: its best split so far.
    merges = [best for token in learnt if len(token) > 1 and (best := _split(token, ids))]
    kinds = SPECIALS | dict.fromkeys(learnt, NORMAL) | USERS
    vocabulary = Vocabulary(
        model="gpt2",
        pre=pre,
        tokens=list(kinds),
        token_types=list(kinds.values()),
        scores=None,
        merges=merges,
        bos=1,
        eos=2,
        eot=None,
        eog=(0, 2),
        pad=None,
        unk=None,
        add_bos=None,
        add_eos=None,
        add_space_prefix=None,
    )
    return dataclasses.replace(vocabulary, **changes)  # type: ignore[arg-type]


def _split(token: str, ids: dict[str, int]) -> str | None:
    cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
    known = [cut for cut in cuts if all(ids.get(part, 1 << 30) < ids[token] for part in cut)]
    return " ".join(min(known, key=lambda cut: max(map(ids.__getitem__, cut)))) if known else None


BYTE_LEVEL = Tokenizer(trained())
QWEN = Tokenizer(trained("qwen2"))


def pieces(seed: int) -> Vocabulary:
    """The synthetic vocabulary without its user-defined token that spells a space as U+2581."""
    vocabulary = sentencepiece(seed)
    types = list(vocabulary.token_types or ())
    types[vocabulary.tokens.index("b▁")] = NORMAL
    return dataclasses.replace(vocabulary, token_types=types)


PIECES = Tokenizer(pieces(3))
PLAIN_PIECES = Tokenizer(pieces(6))


def test_encode_merges_words() -> None:
    tokens = BYTE_LEVEL.encode("the fox, the dog")
    assert len(tokens) < len("the fox, the dog")
    assert b"".join(map(BYTE_LEVEL.token_bytes, tokens)) == b"the fox, the dog"


@given(TEXT)
@settings(max_examples=200, deadline=None)
def test_decode_inverts_encode_byte_level(text: str) -> None:
    for special in (True, False):
        assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text, parse_special=special)) == text
    assert QWEN.decode(QWEN.encode(text)) == unicodedata.normalize("NFC", text)


@given(st.text(st.sampled_from("abc dé文\n👩x"), max_size=40) | TEXT)
@settings(max_examples=200, deadline=None)
def test_decode_inverts_encode_sentencepiece(text: str) -> None:
    text = text.replace("▁", "_")  # this mark stands for a space there and comes back as one
    for tokenizer in (PIECES, PLAIN_PIECES):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode(tokenizer.encode(text, add_special=True), skip_special=True) == text


@given(st.lists(st.integers(0, 400), max_size=30), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_detokenizer_joins_to_decode(tokens: list[int], skip: bool, continuing: bool) -> None:
    for tokenizer in (BYTE_LEVEL, PIECES):
        whole = Detokenizer(tokenizer, skip_special=skip, continuing=continuing)
        pieces = [whole.push(token) for token in tokens]
        want = tokenizer.decode(tokens, skip_special=skip, continuing=continuing)
        assert "".join(pieces) + whole.flush() == want


@given(TEXT)
@settings(max_examples=100, deadline=None)
def test_detokenizer_never_emits_half_a_character(text: str) -> None:
    stream = Detokenizer(BYTE_LEVEL)
    said = ""
    for token in BYTE_LEVEL.encode(text):
        said += stream.push(token)
        assert text.startswith(said)
    assert stream.flush() == ""
    assert said == text


def test_detokenizer_replaces_what_is_surely_broken() -> None:
    byte = [PIECES.token_id(f"<0x{value:02X}>") or 0 for value in range(256)]
    stream = Detokenizer(PIECES, continuing=True)
    assert [stream.push(byte[value]) for value in (0xF0, 0x9F, 0x91)] == ["", "", ""]
    assert stream.push(byte[0xA9]) == "👩"
    assert stream.push(byte[0xF0]) == ""
    assert stream.push(byte[0x41]) == "\ufffdA"
    assert stream.push(byte[0xC3]) == ""
    assert stream.flush() == "\ufffd"


def test_encode_finds_special_tokens_longest_first() -> None:
    im_end, think, longer = map(BYTE_LEVEL.token_id, ("<|im_end|>", "<think>", "<think>>"))
    assert BYTE_LEVEL.encode("<|im_end|><think>>") == [im_end, longer]
    assert BYTE_LEVEL.encode("<|im_end|<think> ")[-2] == think
    assert BYTE_LEVEL.encode("<|im_<|im_end|>end|>").count(im_end) == 1


def test_encode_reads_control_tokens_as_text_on_request() -> None:
    tokens = BYTE_LEVEL.encode("<|im_end|><think>", parse_special=False)
    assert BYTE_LEVEL.token_id("<|im_end|>") not in tokens
    assert tokens[-1] == BYTE_LEVEL.token_id("<think>")
    assert BYTE_LEVEL.decode(tokens, skip_special=True) == "<|im_end|><think>"


def test_encode_adds_what_the_file_asks_for() -> None:
    assert BYTE_LEVEL.encode("", add_special=True) == []
    both = Tokenizer(trained(add_bos=True, add_eos=True))
    assert both.encode("", add_special=True) == [1, 2]
    assert Tokenizer(trained("llama-bpe")).encode("", add_special=True) == [1]
    assert PIECES.add_bos is True


def test_encode_replaces_lone_surrogates() -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode("a\ud800b")) == "a\ufffdb"


def test_encode_keeps_neighbours_of_a_missing_byte_apart() -> None:
    full = trained(merges=["a b"], tokens=[*SPECIALS, *ALPHABET, "ab"], token_types=None)
    holes = dataclasses.replace(full, tokens=[t for t in full.tokens if t != ALPHABET[1]])
    tokenizer = Tokenizer(holes)
    assert tokenizer.decode(tokenizer.encode("a\x01b")) == "ab"
    assert len(tokenizer.encode("a\x01b")) == 2
    assert len(tokenizer.encode("ab")) == 1


def test_ignore_merges_takes_whole_words() -> None:
    tokens = [*SPECIALS, *ALPHABET, "hello"]
    words = Tokenizer(trained("llama-bpe", tokens=tokens, token_types=None, merges=[]))
    parts = Tokenizer(trained("gpt-2", tokens=tokens, token_types=None, merges=[]))
    assert words.encode("hello") == [len(tokens) - 1]
    assert len(parts.encode("hello")) == 5


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "I'm 123 a  b", ["I", "'m", "Ġ123", "Ġa", "Ġ", "Ġb"]),
        ("smollm", "x12 3", ["x", "1", "2", "Ġ", "3"]),
        ("llama-bpe", "I'M 12345\n\n a", ["I", "'M", "Ġ", "123", "45", "ĊĊ", "Ġa"]),
        ("qwen2", "a-b 12", ["a", "-b", "Ġ", "1", "2"]),
        ("qwen35", "e\u0301x", ["eÌģx"]),
        ("qwen2", "e\u0301x", ["e", "Ìģx"]),
        ("deepseek-v3", "ab12日本", ["ab", "12", "æĹ¥æľ¬"]),
        ("default", "a,12345", ["a", ",", "123", "45"]),
    ],
)
def test_pretokenizer_cuts(pre: str, text: str, words: list[str]) -> None:
    cut = pretokenizer_spec(pre).build().pre_tokenize_str(text)
    assert [word for word, _ in cut] == words


def test_eog_and_specials() -> None:
    assert BYTE_LEVEL.eog == {0, 2}
    assert BYTE_LEVEL.is_special(0)
    assert not BYTE_LEVEL.is_special(BYTE_LEVEL.token_id("<think>") or 0)
    assert (BYTE_LEVEL.bos, BYTE_LEVEL.eos) == (1, 2)
    assert BYTE_LEVEL.vocab_size == len(trained().tokens)
    assert BYTE_LEVEL.token_id("no such token") is None


def test_turn_tokens_marked_as_text_are_special_all_the_same() -> None:
    types = [NORMAL] * len(trained().tokens)
    assert Tokenizer(trained(token_types=types)).encode("<|im_end|>") == [2]


@pytest.mark.parametrize("token", [-1, 10**6])
def test_token_bytes_refuses_ids_outside(token: int) -> None:
    with pytest.raises(RequestError, match=f"token id {token} is outside the vocabulary"):
        BYTE_LEVEL.token_bytes(token)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedError, match=r"'klingon' is not known.*known are: deepseek-v3, default, "
    ):
        Tokenizer(trained("klingon"))
    with pytest.raises(UnsupportedError, match="model 'wordpiece' is not known"):
        Tokenizer(trained(model="wordpiece"))
    assert pretokenizer_spec(None) is pretokenizer_spec("") is SPECS["default"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merges": ["zz qq"]}, "merges do not fit its vocabulary"),
        ({"merges": ["nospace"]}, "merges do not fit its vocabulary"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"token_types": [1]}, "1 token types for"),
        ({"bos": 10**6}, "bos token id 1000000 is outside"),
        ({"eog": (-1,)}, r"eog\[0\] token id -1 is outside"),
        ({"add_bos": True, "bos": None}, "add_bos_token but has no tokenizer.ggml.bos_token_id"),
        ({"model": "llama"}, "no tokenizer.ggml.scores"),
    ],
)
def test_broken_vocabularies_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer(trained(**changes))


@pytest.mark.parametrize("seed", range(4))
def test_sentencepiece_word_by_word_equals_whole_text(seed: int) -> None:
    vocabulary = sentencepiece(seed)
    assert any(left != "▁" == right for text in vocabulary.tokens for left, right in pairwise(text))
    tokenizer, whole = Tokenizer(vocabulary), Tokenizer(vocabulary)
    whole._model._cut = re.compile(r"(?!)")  # type: ignore[union-attr]
    for text in sentencepiece_strings(seed)[:500]:
        assert tokenizer.encode(text) == whole.encode(text)
