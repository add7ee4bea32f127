"""Drafter files as others make them: their forms are read, their faults refused by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.meta import Meta
from pydflash.checkpoint.writer import Int32s
from pydflash.checkpoint.writer import write_gguf as write_file
from pydflash.draft.bounds import check_config
from pydflash.draft.files import is_drafter, open_drafter
from pydflash.draft.write import as_quant, write_gguf, write_safetensors
from pydflash.errors import CheckpointError, ConfigError, UnsupportedError
from pydflash.kernels.ref.quant import dequantize
from pydflash.layers.rope import RopeSpec
from tests.tiny.draft import CASES, tiny_config, tiny_draft
from tests.tiny.gguf import tiny_gguf

Tensor = torch.Tensor
Values = dict[str, Any]
V1 = CASES["v1"]


def zlab(
    at: Path,
    case: str = "v1",
    *,
    config: Callable[[Values], object] | None = None,
    tensors: Callable[[dict[str, Tensor]], object] | None = None,
) -> Path:
    """A safetensors drafter whose config.json and tensors (by z-lab's names) were edited."""
    write_safetensors(CASES[case].config, CASES[case].tensors(), at)
    if config is not None:
        values = json.loads((at / "config.json").read_text())
        config(values)
        (at / "config.json").write_text(json.dumps(values))
    if tensors is not None:
        stored = load_file(at / "model.safetensors")
        tensors(stored)
        save_file({n: t.contiguous() for n, t in stored.items()}, at / "model.safetensors")
    return at


def seeds(
    at: Path, case: str = "v1", *, drop: tuple[str, ...] = (), tensors: Any = None, **keys: Any
) -> Path:
    """A GGUF drafter of the seeds' dialect whose keys (below the architecture) were edited."""
    return _edit(write_gguf(CASES[case].config, CASES[case].tensors(), at), drop, tensors, keys)


def _edit(path: Path, drop: tuple[str, ...], tensors: Any, keys: Values) -> Path:
    with open_checkpoint(path) as checkpoint:
        arch = checkpoint.meta.arch
        held = {name: checkpoint.tensor(name) for name in checkpoint.tensors}
        infos = dict(checkpoint.tensors)
        if tensors is not None:
            names = {name: tensors(name) for name in infos}
            infos = {n: replace(infos[o], name=n) for o, n in names.items() if n is not None}
            held = {n: held[o] for o, n in names.items() if n is not None}
        plan = [(info, lambda n=name: held[n]) for name, info in infos.items()]
        changes = {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
        changes |= dict.fromkeys(drop)
        edited = path.with_name("edited.gguf")
        write_file(edited, meta=checkpoint.meta, tensors=plan, overrides=changes)
    return edited


def refused(path: Path, *words: str, error: type[Exception] = CheckpointError) -> None:
    with pytest.raises(error) as caught:
        open_drafter(path)
    for word in words:
        assert word in str(caught.value)


# --- z-lab's form ---


@pytest.mark.parametrize(
    "key", ["rope_theta", "hidden_size", "num_hidden_layers", "vocab_size", "num_key_value_heads"]
)
def test_open_drafter_refuses_a_config_without(key: str, tmp_path: Path) -> None:
    refused(zlab(tmp_path / "d", config=lambda v: v.pop(key)), f"does not state {key}")


@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id"])
def test_open_drafter_refuses_a_dflash_config_without(key: str, tmp_path: Path) -> None:
    path = zlab(tmp_path / "d", config=lambda v: v["dflash_config"].pop(key))
    refused(path, f"does not state {key}")


def test_open_drafter_refuses_a_block_size_that_is_missing_or_stated_twice(tmp_path: Path) -> None:
    def none(values: Values) -> None:
        del values["block_size"], values["dflash_config"]["block_size"]

    refused(zlab(tmp_path / "none", config=none), "does not state", "block_size")
    path = zlab(tmp_path / "two", config=lambda v: v.update(block_size=8))
    refused(path, "block sizes", "'4', '8'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_sink_bias": True}, "attention_sink_bias"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "llama3"),
    ],
)
def test_open_drafter_says_what_is_not_built(change: Values, words: str, tmp_path: Path) -> None:
    path = zlab(tmp_path / "d", config=lambda v: v.update(change))
    refused(path, words, "not built yet", error=UnsupportedError)


def test_open_drafter_needs_config_json(tmp_path: Path) -> None:
    path = zlab(tmp_path / "d")
    (path / "config.json").unlink()
    refused(path, "no config.json")


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({}, (True, True, False)),
        ({"dflash": False}, (False, False, False)),
        ({"dflash": True}, (True, True, True)),
        ({"top": False, "dflash": True}, (False, False, False)),
        ({"top": True, "dflash": False}, (True, True, True)),
    ],
)
def test_causal_precedence(
    changes: dict[str, bool], causal: tuple[bool, ...], tmp_path: Path
) -> None:
    def edit(values: Values) -> None:
        if "top" in changes:
            values["is_causal"] = changes["top"]
        if "dflash" in changes:
            values["dflash_config"]["causal"] = changes["dflash"]

    with open_drafter(zlab(tmp_path / "d", "swa", config=edit)) as drafter:
        assert drafter.config.causal == causal
        assert drafter.config.windows == (16, 16, None)


def test_open_drafter_reads_use_swa_and_refuses_a_window_switched_off(tmp_path: Path) -> None:
    def swa(values: Values) -> None:
        values["dflash_config"] |= {"use_swa": True, "swa_window_size": 24}
        del values["layer_types"], values["use_sliding_window"], values["is_causal"]

    with open_drafter(zlab(tmp_path / "d", config=swa)) as drafter:
        assert drafter.config.windows == (24, 24)
        assert drafter.config.causal == (True, True)
    off = zlab(tmp_path / "off", "swa", config=lambda v: v.update(use_sliding_window=False))
    refused(off, "use_sliding_window")
    narrow = zlab(tmp_path / "narrow", "swa", config=lambda v: v.update(sliding_window=3))
    refused(narrow, "window of 3")


def test_open_drafter_reads_nested_rope_and_attention_factor(tmp_path: Path) -> None:
    def nest(values: Values) -> None:
        del values["rope_theta"], values["rope_scaling"]
        values["rope_parameters"] = {
            "rope_theta": 5e6,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 2.277258872223978,  # 2 * (1 + ln(4) / 10)
        }

    with open_drafter(zlab(tmp_path / "d", config=nest)) as drafter:
        rope = drafter.config.rope
        assert rope.base == 5e6
        assert rope.attn_factor == pytest.approx(2.0)
        assert (rope.scaling, rope.factor, rope.original_ctx) == ("yarn", 4.0, 64)


def test_dspark_must_say_whether_it_drafts_from_the_anchor(tmp_path: Path) -> None:
    path = zlab(
        tmp_path / "d", "markov", config=lambda v: v["dflash_config"].pop("sample_from_anchor")
    )
    refused(path, "sample_from_anchor", "cannot be guessed")


def test_open_drafter_takes_other_spellings(tmp_path: Path) -> None:
    def spell(stored: dict[str, Tensor]) -> None:
        stored["encoder.fc.weight"] = stored.pop("fc.weight")
        stored["encoder.output_norm_enc.weight"] = stored.pop("hidden_norm.weight")
        stored["model.norm.weight"] = stored.pop("norm.weight")
        for name in [n for n in stored if n.startswith("layers.0.")]:
            stored[name.replace("layers.0.", "midlayer.")] = stored.pop(name)
        parts = [stored.pop(f"layers.1.self_attn.{p}_proj.weight") for p in "qkv"]
        stored["layers.1.self_attn.qkv_proj.weight"] = torch.cat(parts)
        stored["embed_tokens.weight"] = torch.zeros(320, 64)
        stored["lm_head.weight"] = torch.zeros(320, 64)

    path = zlab(tmp_path / "d", tensors=spell)
    with open_drafter(path) as drafter:
        assert drafter.config == V1.config
        assert len(drafter.notes) == 2
        for name, tensor in V1.tensors().items():
            assert torch.equal(dequantize(drafter.checkpoint.tensor(name)), tensor), name


def test_open_drafter_reads_the_speculators_form(tmp_path: Path) -> None:
    case = CASES["reduced-markov"]

    def nest(values: Values) -> None:
        own = values.pop("dflash_config")
        top = {k: values.pop(k) for k in ("block_size", "draft_vocab_size")}
        del values["is_causal"], values["dflash_card"], values["num_target_layers"]
        inner = dict(values)
        values.clear()
        values |= top | {
            "speculators_model_type": "dspark",
            "architectures": ["DSparkSpeculator"],
            "transformer_layer_config": inner,
            "aux_hidden_state_layer_ids": [i + 1 for i in own["target_layer_ids"]],
            "mask_token_id": own["mask_token_id"],
            "speculators_config": {"verifier": {"name_or_path": "someone/tiny-llama"}},
        }

    def more(stored: dict[str, Tensor]) -> None:
        stored["t2d"] = torch.zeros(320, dtype=torch.bool)

    path = zlab(tmp_path / "d", "reduced-markov", config=nest, tensors=more)
    with open_drafter(path) as drafter:
        assert drafter.config == replace(case.config, card={"target": "someone/tiny-llama"})
        assert drafter.checkpoint.tensor("d2t").format.name == "I64"
    (path / "config.json").write_text(
        (path / "config.json").read_text().replace("[1, 2]", "[0, 1]")
    )
    refused(path, "[-1, 0]")


# --- tensors, whatever the container ---


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


# --- llama.cpp's dialect ---


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Meta:
    return open_checkpoint(tiny_gguf(tmp_path_factory.mktemp("t") / "t.gguf")).meta


def llama(at: Path, tokenizer: Meta, case: str = "v1", **edits: Any) -> Path:
    keys = {k: v for k, v in edits.items() if k not in ("drop", "tensors")}
    path = write_gguf(
        CASES[case].config, CASES[case].tensors(), at, dialect="dflash", tokenizer=tokenizer
    )
    return _edit(path, edits.get("drop", ()), edits.get("tensors"), keys)


def test_llama_cpp_counts_layer_inputs(tokenizer: Meta, tmp_path: Path) -> None:
    path = llama(tmp_path / "d.gguf", tokenizer)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.meta.ints("dflash.target_layers") == [1, 2]
        assert checkpoint.meta.int("tokenizer.ggml.mask_token_id") == 317
        assert "fc.weight" in checkpoint.tensors
        assert "enc.output_norm.weight" in checkpoint.tensors
    with open_drafter(path) as drafter:
        assert drafter.config.target_layers == (0, 1)
    refused(
        llama(tmp_path / "e.gguf", tokenizer, target_layers=[0, 1]),
        "embeddings",
        error=UnsupportedError,
    )


def test_llama_cpp_stores_token_ids(tokenizer: Meta, tmp_path: Path) -> None:
    path = llama(tmp_path / "d.gguf", tokenizer, "reduced")
    want = CASES["reduced"].tensors()["d2t"] + torch.arange(96)
    with open_checkpoint(path) as checkpoint:
        stored = checkpoint.tensor("d2t")
        assert stored.format.name == "I64"
        assert torch.equal(stored.data.clone().view(torch.int64), want)


def test_llama_cpp_refusals(tokenizer: Meta, tmp_path: Path) -> None:
    for key, value in (("embedding_scale", 8.0), ("hidden_act", "gelu")):
        path = llama(tmp_path / "d.gguf", tokenizer, **{key: value})
        refused(path, key, error=UnsupportedError)
    path = llama(tmp_path / "d.gguf", tokenizer, drop=("tokenizer.ggml.mask_token_id",))
    refused(path, "tokenizer.ggml.mask_token_id")
    path = llama(tmp_path / "d.gguf", tokenizer, drop=("dflash.target_layers",))
    refused(path, "dflash.target_layers")
    with pytest.raises(ConfigError, match="name the target's GGUF file"):
        write_gguf(V1.config, V1.tensors(), tmp_path / "x.gguf", dialect="dflash")
    other = tiny_config(vocab=300, mask_token=5)
    with pytest.raises(ConfigError, match="320 tokens, the drafter's target 300"):
        write_gguf(
            other, tiny_draft(other), tmp_path / "x.gguf", dialect="dflash", tokenizer=tokenizer
        )


def test_llama_cpp_own_embeddings_leave_the_masks_row(tokenizer: Meta, tmp_path: Path) -> None:
    path = llama(tmp_path / "d.gguf", tokenizer)
    table = torch.randn(320, 64)
    with open_checkpoint(path) as checkpoint:
        held = {name: checkpoint.tensor(name) for name in checkpoint.tensors}
        held["token_embd.weight"] = as_quant("token_embd.weight", table)
        held["output.weight"] = as_quant("output.weight", table)
        template = checkpoint.info("fc.weight")
        plan = [
            (
                replace(template, name=n, shape=t.shape, format=t.format, nbytes=t.nbytes),
                lambda t=t: t,
            )
            for n, t in held.items()
        ]
        write_file(tmp_path / "own.gguf", meta=checkpoint.meta, tensors=plan)
    with open_drafter(tmp_path / "own.gguf") as drafter:
        assert len(drafter.notes) == 2
        mask = dequantize(drafter.checkpoint.tensor("dflash.mask_embedding"))
        assert torch.equal(mask, table[317])
        assert "output.weight" not in drafter.checkpoint.tensors


# --- writers ---


def test_d2t_must_lead_to_distinct_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    case = CASES["reduced"]
    for change, words in ((1000, "outside the vocabulary"), (None, "same token twice")):
        tensors = case.tensors()
        tensors["d2t"][-1] = tensors["d2t"][-2] - 1 if change is None else change
        refused(write_gguf(case.config, tensors, tmp_path / "d.gguf"), words)


def test_writers_refuse_what_no_file_can_say(tmp_path: Path) -> None:
    config = tiny_config(windows=(16, 32))
    with pytest.raises(UnsupportedError, match=r"\[16, 32\]"):
        write_gguf(config, tiny_draft(config), tmp_path / "d.gguf")
    mixed = tiny_config(causal=(True, False))
    with pytest.raises(UnsupportedError, match="causal"):
        write_safetensors(mixed, tiny_draft(mixed), tmp_path / "d")
    path = write_gguf(mixed, tiny_draft(mixed), tmp_path / "d.gguf")
    with open_drafter(path) as drafter:
        assert drafter.config == mixed
    wrong = tiny_draft(mixed) | {"blk.0.attn_q.weight": torch.zeros(64, 32)}
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight is \[64, 32\]"):
        write_gguf(mixed, wrong, tmp_path / "d.gguf")
    with pytest.raises(ConfigError, match="no dialect"):
        write_gguf(mixed, tiny_draft(mixed), tmp_path / "d.gguf", dialect="llama")
    with pytest.raises(ConfigError, match="float64"):
        write_gguf(V1.config, {n: t.double() for n, t in V1.tensors().items()}, tmp_path / "d.gguf")


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 1025},
        {"heads": 3},
        {"eps": 0.0},
        {"mask_token": 320},
        {"draft_vocab": 400},
        {"logit_scale": 0.0},
        {"windows": (2, None)},
        {"causal": (True,)},
        {"target_layers": ()},
        {"rope": RopeSpec(dims=32, base=1e4, interleaved=False)},
    ],
)
def test_check_config_refuses(changes: Values) -> None:
    with pytest.raises(CheckpointError, match="cannot be"):
        check_config(replace(tiny_config(), **changes))
