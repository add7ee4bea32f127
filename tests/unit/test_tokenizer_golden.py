"""Token ids equal to llama.cpp's and to the models' own tokenizer.json, on 12,000 strings each."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.meta import read_vocabulary
from pydflash.text import pretokenizers
from pydflash.text.tokenizer import Tokenizer
from pydflash.text.vocabulary import Vocabulary
from tests.oracles.tokenizer_golden import (
    MODES,
    OTHER_PRE,
    SENTENCEPIECE_SEEDS,
    load,
    token_hash,
    unpack,
)
from tests.oracles.tokenizer_strings import COUNT, SEED, strings
from tests.oracles.tokenizer_vocabularies import (
    from_tokenizer_json,
    sentencepiece,
    sentencepiece_strings,
)


def assert_equal(tokenizer: Tokenizer, texts: list[str], recorded: str, mode: str) -> None:
    want = list(unpack(recorded))
    assert len(want) == len(texts)
    for text, digest in zip(texts, want, strict=True):
        tokens = tokenizer.encode(text, **MODES[mode])
        assert token_hash(tokens) == digest, f"{text!r} became {tokens}"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return strings()


@pytest.fixture(scope="module")
def smollm2_vocabulary(smollm2: Path) -> Vocabulary:
    return Vocabulary(**read_vocabulary(open_checkpoint(smollm2).meta))


def test_strings_are_the_recorded_ones(texts: list[str]) -> None:
    assert len(texts) == COUNT >= 10_000
    assert len(set(texts)) > 0.98 * COUNT
    for name in ("smollm2", "qwen3", "sentencepiece"):
        assert (load(name)["seed"], load(name)["count"]) == (SEED, COUNT)


@pytest.mark.model
@pytest.mark.parametrize("mode", list(MODES))
def test_smollm2_equals_llama_cpp(
    smollm2_vocabulary: Vocabulary, texts: list[str], mode: str
) -> None:
    recorded = load("smollm2")["modes"][mode]
    assert_equal(Tokenizer(smollm2_vocabulary), texts, recorded, mode)


@pytest.mark.model
@pytest.mark.parametrize("pre", OTHER_PRE)
def test_pretokenizer_equals_llama_cpp(
    smollm2_vocabulary: Vocabulary, texts: list[str], pre: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pretokenizers.SPECS[pre]
    # llama.cpp does not normalise; Qwen does, which the test on its own tokenizer.json covers.
    monkeypatch.setitem(pretokenizers.SPECS, pre, dataclasses.replace(spec, nfc=False))
    tokenizer = Tokenizer(dataclasses.replace(smollm2_vocabulary, pre=pre))
    assert_equal(tokenizer, texts[::4], load("smollm2")["other_pre"][pre], "parsed")


@pytest.mark.parametrize("seed", SENTENCEPIECE_SEEDS)
def test_sentencepiece_equals_llama_cpp(seed: int) -> None:
    tokenizer = Tokenizer(sentencepiece(seed))
    for mode, recorded in load("sentencepiece")["runs"][str(seed)].items():
        assert_equal(tokenizer, sentencepiece_strings(seed), recorded, mode)


@pytest.fixture(scope="module")
def qwen3_json() -> dict[str, Any]:
    """Qwen3's tokenizer.json is 11 MB and not shipped: name it to run these tests."""
    path = os.environ.get("PYDFLASH_QWEN3_TOKENIZER")
    if not path:
        pytest.skip("set PYDFLASH_QWEN3_TOKENIZER to the path of Qwen3's tokenizer.json")
    data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize("mode", ["parsed", "plain"])
def test_qwen3_equals_its_tokenizer_json(
    qwen3_json: dict[str, Any], texts: list[str], mode: str
) -> None:
    tokenizer = Tokenizer(from_tokenizer_json(qwen3_json, pre="qwen2", eos="<|im_end|>"))
    assert_equal(tokenizer, texts, load("qwen3")["modes"][mode], mode)
