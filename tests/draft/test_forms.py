"""z-lab's and speculators' drafters: every form of config.json is read, what it leaves out is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pydflash.draft.files import open_drafter
from pydflash.errors import UnsupportedError
from pydflash.kernels.ref.quant import dequantize
from tests.draft.edited import refused, zlab
from tests.tiny.draft import CASES

Tensor = torch.Tensor
Values = dict[str, Any]
V1 = CASES["v1"]


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
    refused(path, "block sizes 4 and 8")


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
