"""Tensors and metadata of GGUF drafters are held against each other; faults are refused by name."""

from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.writer import Int32s
from pydflash.draft.files import is_drafter, open_drafter
from pydflash.draft.write import write_safetensors
from pydflash.errors import CheckpointError, UnsupportedError
from tests.draft.edited import refused, seeds
from tests.tiny.draft import CASES
from tests.tiny.gguf import tiny_gguf

V1 = CASES["v1"]


@pytest.mark.parametrize("case", ["v1", "dflash2", "dspark", "reduced", "domino", "gates"])
def test_open_drafter_names_a_renamed_tensor(case: str, tmp_path: Path) -> None:
    path = write_safetensors(CASES[case].config, CASES[case].tensors(), tmp_path / "d")
    stored = load_file(path / "model.safetensors")
    for name in stored:
        changed = {(n + "_" if n == name else n): t for n, t in stored.items()}
        save_file(changed, path / "model.safetensors")
        with pytest.raises(CheckpointError) as caught:
            open_drafter(path)
        # A head whose only tensor went is not missed, but the stranger is named.
        assert name + "_" in str(caught.value) or "lacks the tensor" in str(caught.value)


@pytest.mark.parametrize("name", ["blk.1.attn_k.weight", "dflash.fc.weight", "output_norm.weight"])
def test_open_drafter_names_a_missing_tensor(name: str, tmp_path: Path) -> None:
    path = seeds(tmp_path / "d.gguf", tensors=lambda n: None if n == name else n)
    refused(path, f"lacks the tensor {name}")


def test_open_drafter_names_both_sides_of_a_renaming(tmp_path: Path) -> None:
    path = seeds(
        tmp_path / "d.gguf",
        tensors=lambda n: n.replace("blk.1.ffn_up.weight", "blk.1.ffn_upp.weight"),
    )
    refused(path, "blk.1.ffn_up.weight", "blk.1.ffn_upp.weight")


def test_gates_are_on_all_layers_or_none(tmp_path: Path) -> None:
    path = seeds(
        tmp_path / "d.gguf",
        "gates",
        tensors=lambda n: None if n == "blk.1.attn_gate.weight" else n,
    )
    refused(path, "lacks the tensor blk.1.attn_gate.weight")
    path = seeds(
        tmp_path / "a.gguf",
        "channel-gates",
        tensors=lambda n: None if n == "dflash.aux_hidden_norm.0.weight" else n,
    )
    refused(path, "lacks the tensor dflash.aux_hidden_norm.0.weight")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("attention__head_count", 8, ("blk.0.attn_q.weight is [64, 64]", "implies [128, 64]")),
        ("attention__key_length", 32, ("blk.0.attn_q.weight", "implies")),
        ("feed_forward_length", 64, ("blk.0.ffn_gate.weight is [96, 64]",)),
        ("block_count", 3, ("lacks the tensor blk.2.attn_norm.weight",)),
        ("block_count", 1, ("has the tensor blk.1.", "does not use")),
        ("block_count", 1 << 31, ("layers",)),
        ("embedding_length", 32, ("names 2 target layers, but dflash.fc.weight takes 4",)),
        ("embedding_length", 48, ("no multiple",)),
        ("attention__head_count_kv", 3, ("kv heads",)),
        ("dflash__mask_token_id", 320, ("mask token 320",)),
        ("dflash__target_layer_ids", Int32s([0, 1, 2]), ("names 3 target layers",)),
        ("dflash__target_layer_ids", Int32s([1, 0]), ("ascending",)),
        ("dflash__target_layer_ids", Int32s([1, 1]), ("ascending",)),
        ("dflash__target_layer_ids", Int32s([-1, 1]), ("not negative",)),
        ("dflash__block_size", 1, ("block of 1",)),
        ("dflash__block_size", 1 << 20, ("block_size",)),
        ("rope__freq_base", 0.0, ("rope",)),
        ("rope__scaling__type", "longrope", ("longrope",)),
        ("attention__sliding_window", 2048, ("sliding_window_pattern",)),
    ],
)
def test_open_drafter_holds_metadata_against_tensors(
    key: str, value: object, words: tuple[str, ...], tmp_path: Path
) -> None:
    refused(seeds(tmp_path / "d.gguf", **{key: value}), *words)


@pytest.mark.parametrize(
    "key",
    [
        "rope.freq_base",
        "dflash.block_size",
        "dflash.mask_token_id",
        "dflash.target_layer_ids",
        "embedding_length",
        "attention.head_count_kv",
        "vocab_size",
    ],
)
def test_open_drafter_names_a_missing_key(key: str, tmp_path: Path) -> None:
    refused(seeds(tmp_path / "d.gguf", drop=(f"dflash-draft.{key}",)), f"dflash-draft.{key}")


def test_seeds_dialect_aliases_notes_and_switches(tmp_path: Path) -> None:
    def rename(name: str) -> str:
        name = name.replace("dflash.fc", "dflash_fc").replace("dflash.hidden", "dflash_hidden")
        return name.replace("ffn_norm", "post_attention_norm")

    path = seeds(
        tmp_path / "d.gguf",
        tensors=rename,
        dflash__n_target_layers=5,
        dflash__context_kv_layer_norm=1,
        dflash__odd_setting=3,
        attention__causal=True,
    )
    with open_drafter(path) as drafter:
        want = replace(V1.config, context_norm=True, causal=(True, True))
        assert drafter.config == want
        assert "5 target layers" in drafter.notes[0]
        assert "odd_setting" in drafter.notes[1]


def test_gguf_of_another_architecture_is_no_drafter(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model.gguf")
    refused(path, "is no DFlash drafter", "llama", "qwen35-dflash-draft", error=UnsupportedError)
    with open_checkpoint(path) as checkpoint:
        assert not is_drafter(checkpoint)
    with open_checkpoint(seeds(tmp_path / "d.gguf")) as checkpoint:
        assert is_drafter(checkpoint)
