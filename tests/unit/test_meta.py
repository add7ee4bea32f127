"""Meta and read_vocabulary: typed reads fail loudly, unread keys are known."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.meta import Meta, read_vocabulary
from pydflash.errors import CheckpointError
from pydflash.text.vocabulary import Vocabulary
from tests.tiny.gguf import tiny_gguf

VALUES: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.eps": 0.5,
    "llama.causal": True,
    "llama.kind": "dense",
    "llama.heads": [4, 4, 8],
    "llama.scales": [1.0, 2.0],
    "llama.swa": [True, False, True],
    "llama.names": ["a", "b"],
    "llama.empty": [],
    "other.key": 1,
}


@pytest.fixture
def meta() -> Meta:
    return Meta.from_values("m.gguf", VALUES)


def test_meta_reads_each_type(meta: Meta) -> None:
    assert meta.arch == "llama"
    assert meta.int("{arch}.block_count") == 3
    assert meta.float("llama.eps") == 0.5
    assert meta.bool("{arch}.causal") is True
    assert meta.str("{arch}.kind") == "dense"
    assert meta.ints("{arch}.heads") == [4, 4, 8]
    assert meta.floats("{arch}.scales") == [1.0, 2.0]
    assert meta.bools("{arch}.swa") == [True, False, True]
    assert meta.strs("{arch}.names") == ["a", "b"]
    assert meta.ints("{arch}.empty") == meta.strs("{arch}.empty") == []
    assert "{arch}.kind" in meta
    assert "{arch}.none" not in meta
    assert meta.keys() == list(meta) == list(VALUES)
    assert meta.get("none") is None


READERS = ["int", "float", "bool", "str", "ints", "floats", "bools", "strs"]


@pytest.mark.parametrize("reader", READERS)
def test_meta_missing(reader: str, meta: Meta) -> None:
    read = getattr(meta, reader)
    assert read("{arch}.none", default=None) is None
    assert read("{arch}.none", default=7) == 7
    with pytest.raises(CheckpointError, match=r"m\.gguf lacks the metadata key llama\.none"):
        read("{arch}.none")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("key", [k for k in VALUES if k.startswith("llama.") and "empty" not in k])
def test_meta_wrong_type(reader: str, key: str, meta: Meta) -> None:
    value = VALUES[key]
    kind = type(value[0]).__name__ + "s" if isinstance(value, list) else type(value).__name__
    if kind == reader:
        assert getattr(meta, reader)(key) == value
        return
    with pytest.raises(
        CheckpointError, match=rf"m\.gguf: metadata key {key} should be an? .* but is"
    ):
        getattr(meta, reader)(key, default=None)


def test_meta_says_what_it_found(meta: Meta) -> None:
    with pytest.raises(CheckpointError, match=r"should be an integer but is an array of 3 INT64"):
        meta.int("llama.heads")
    with pytest.raises(CheckpointError, match=r"should be a float but is STRING"):
        meta.float("llama.kind")


def test_meta_arch_missing() -> None:
    with pytest.raises(CheckpointError, match=r"lacks the metadata key general\.architecture"):
        Meta.from_values("m.gguf", {}).int("{arch}.block_count")


def test_meta_per_layer(meta: Meta) -> None:
    assert meta.per_layer_int("{arch}.block_count", 4) == (3, 3, 3, 3)
    assert meta.per_layer_int("{arch}.heads", 3) == (4, 4, 8)
    assert meta.per_layer_int("{arch}.none", 2, default=0) == (0, 0)
    assert meta.per_layer_bool("{arch}.swa", 3) == (True, False, True)
    assert meta.per_layer_bool("{arch}.none", 2, default=False) == (False, False)
    assert meta.per_layer_float("{arch}.eps", 2) == (0.5, 0.5)
    with pytest.raises(CheckpointError, match=r"one for each of 5 layers, but is an array of 3"):
        meta.per_layer_int("{arch}.heads", 5)
    with pytest.raises(CheckpointError, match=r"llama\.none"):
        meta.per_layer_int("{arch}.none", 5)
    with pytest.raises(CheckpointError, match=r"llama\.swa should be an array of integers"):
        meta.per_layer_int("{arch}.swa", 3)


def test_meta_unread(meta: Meta) -> None:
    assert meta.unread() == [key for key in VALUES if key.startswith("llama.")]
    meta.int("{arch}.block_count")
    meta.int("{arch}.none", default=None)
    meta.per_layer_int("{arch}.heads", 3)
    meta.ignore("{arch}.s*", "llama.eps", "{arch}.absent")
    assert meta.unread() == ["llama.causal", "llama.kind", "llama.names", "llama.empty"]


def test_read_vocabulary(tiny_llama: Path) -> None:
    with open_checkpoint(tiny_llama) as checkpoint:
        fields = read_vocabulary(checkpoint.meta)
    assert set(fields) == set(inspect.signature(Vocabulary).parameters)
    vocabulary = Vocabulary(**fields)
    assert (vocabulary.model, vocabulary.pre) == ("gpt2", "smollm")
    assert len(vocabulary.tokens) == len(vocabulary.token_types or ()) == 320
    assert vocabulary.tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert (vocabulary.bos, vocabulary.eos, vocabulary.eot) == (1, 2, None)
    assert vocabulary.eog == (0, 2)
    assert (vocabulary.pad, vocabulary.unk) == (0, 0)
    assert vocabulary.add_bos is False
    assert vocabulary.add_eos is None
    assert vocabulary.scores is None
    assert vocabulary.merges


def vocabulary_of(**changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "model": "gpt2",
        "tokens": ["a", "</s>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>"],
        "token_type": [1, 1, 3, 3, 1, 1],
        "merges": [],
        "eos_token_id": 0,
    }
    keys |= changes
    return read_vocabulary(
        Meta.from_values("m", {f"tokenizer.ggml.{k}": v for k, v in keys.items() if v is not None})
    )


def test_read_vocabulary_collects_ends() -> None:
    # Only tokens marked as special count by name: "</s>" can be a piece of text.
    assert vocabulary_of()["eog"] == (0, 2, 3)
    assert vocabulary_of(eot_token_id=1)["eog"] == (0, 1, 2, 3)
    assert vocabulary_of(eom_token_id=5)["eog"] == (0, 2, 3, 5)
    assert vocabulary_of(token_type=None)["eog"] == (0, 1, 2, 4, 5)
    assert vocabulary_of(token_type=[3] * 6)["eog"] == (0, 1, 2, 4, 5)


def test_read_vocabulary_none_ids() -> None:
    assert vocabulary_of(bos_token_id=-1)["bos"] is None
    assert vocabulary_of(padding_token_id=0xFFFFFFFF)["pad"] is None


def test_read_vocabulary_refuses() -> None:
    with pytest.raises(
        CheckpointError, match=r"eos_token_id is 6, but the vocabulary has 6 tokens"
    ):
        vocabulary_of(eos_token_id=6)
    with pytest.raises(CheckpointError, match=r"token_type has 2 entries for 6 tokens"):
        vocabulary_of(token_type=[1, 1])
    with pytest.raises(CheckpointError, match=r"scores has 1 entries for 6 tokens"):
        vocabulary_of(scores=[1.0])
    with pytest.raises(CheckpointError, match=r"lacks the metadata key tokenizer\.ggml\.tokens"):
        vocabulary_of(tokens=None)


def test_tiny_gguf_options(tmp_path: Path) -> None:
    path = tiny_gguf(
        tmp_path / "m.gguf",
        "qwen3",
        formats={"*attn_v*": "Q8_0", "blk.*": "Q4_0", "*": "F16"},
        rope={"scaling.type": "yarn", "scaling.factor": 4.0},
        bias=True,
        rope_factors=True,
        omit=("qwen3.rope.dimension_count", "output.weight"),
        extra={"qwen3.attention.causal": True},
    )
    with open_checkpoint(path) as checkpoint:
        formats = {name: info.format.name for name, info in checkpoint.tensors.items()}
        assert formats["blk.1.attn_v.weight"] == "Q8_0"
        assert formats["blk.1.attn_q.weight"] == "Q4_0"
        assert formats["token_embd.weight"] == "F16"
        assert formats["blk.0.attn_q_norm.weight"] == formats["blk.0.attn_q.bias"] == "F32"
        assert formats["rope_freqs.weight"] == "F32"
        assert "output.weight" not in formats
        assert checkpoint.meta.float("{arch}.rope.scaling.factor") == 4.0
        assert checkpoint.meta.str("{arch}.rope.scaling.type") == "yarn"
        assert checkpoint.meta.bool("{arch}.attention.causal")
        assert "{arch}.rope.dimension_count" not in checkpoint.meta
