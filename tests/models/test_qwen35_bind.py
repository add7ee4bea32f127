"""describe and load for hybrids and mixtures: what a file may leave out, and what it must not get wrong."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from pydflash.checkpoint.files import open_checkpoint
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels import select
from pydflash.kernels.ops import Missing, RowKind, Span
from pydflash.models.load import describe
from tests.driver import Driver
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape, MoeShape

TOKENS = list(range(5, 25))


def load(path: Path, **missing: Missing) -> None:
    table = replace(select.build(torch.device("cpu"), ops="ref"), **missing)
    with open_checkpoint(path) as checkpoint:
        described = describe(checkpoint)
        described.load(table, described.config.max_positions)


@pytest.mark.parametrize(
    "key", ["conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count"]
)
def test_missing_ssm_metadata_is_named(tmp_path: Path, key: str) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", "qwen35", omit=(f"qwen35.ssm.{key}",))
    with pytest.raises(CheckpointError, match=rf"qwen35\.ssm\.{key}; fetch or convert"):
        load(path)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"ssm.time_step_rank": 3}, "64 inner features do not divide over 3 value heads"),
        ({"ssm.group_count": 3}, "do not divide over 64|over 3 key heads"),
        ({"ssm.conv_kernel": 1}, "conv_kernel above 1"),
        ({"ssm.group_count": 1}, r"blk\.0\.attn_qkv\.weight is \[128, 64\].*\[96, 64\]"),
        ({"attention.head_count": 3}, "3 attention heads do not divide over 2"),
        ({"attention.head_count": 2}, r"attn_q\.weight is \[128, 64\].*\[64, 64\]"),
        ({"attention.head_count_kv": 1}, r"attn_k\.weight is \[32, 64\].*\[16, 64\]"),
        ({"rope.dimension_sections": [2, 2, 2]}, "at least four"),
        ({"rope.dimension_sections": [0, 0, 0, 0]}, "between 2 and 16"),
        ({"rope.dimension_sections": [4, 4, 4, 0]}, "between 2 and 16"),
        ({"rope.dimension_count": 7}, "must be even"),
        ({"full_attention_interval": 3}, "2 blocks are not whole groups of 3"),
        ({"full_attention_interval": 0}, "above 0"),
        ({"attention.value_length": 8}, "must equal key_length"),
    ],
)
def test_metadata_that_cannot_be_right(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    extra = {f"qwen35.{key}": value for key, value in keys.items()}
    path = tiny_gguf(tmp_path / "m.gguf", "qwen35", extra=extra)
    with pytest.raises(CheckpointError, match=sentence):
        load(path)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"expert_used_count": 0}, "0 experts of 6"),
        ({"expert_used_count": 7}, "7 experts of 6"),
        ({"expert_gating_func": 3}, "known: 1"),
        ({"expert_count": 4}, r"ffn_gate_exps\.weight is \[6, 32, 64\].*\[4, 32, 64\]"),
        ({"expert_shared_feed_forward_length": 0}, "shared expert but no"),
    ],
)
def test_experts_that_cannot_be_right(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    extra = {f"qwen35moe.{key}": value for key, value in keys.items()}
    path = tiny_gguf(tmp_path / "m.gguf", "qwen35moe", extra=extra)
    with pytest.raises(CheckpointError, match=sentence):
        load(path)


def test_half_a_shared_expert_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", "qwen35moe", omit=("*ffn_up_shexp*",))
    with pytest.raises(CheckpointError, match=r"without blk\.0\.ffn_up_shexp"):
        load(path)


def test_fused_experts_are_the_same_experts(tmp_path: Path) -> None:
    logits = []
    for fused in (False, True):
        path = tiny_gguf(tmp_path / "m.gguf", "qwen3moe", moe=MoeShape(shared=0, fused=fused))
        d = Driver(path, ops="ref")
        logits.append(d.prefill(d.state(), TOKENS))
    assert torch.equal(*logits)


@pytest.mark.parametrize("op", ["delta_layer", "moe"])
def test_a_backend_without_the_op_is_refused_at_load(tmp_path: Path, op: str) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", "qwen35moe")
    with pytest.raises(UnsupportedError, match=f"no {op}, .*--ops ref"):
        load(path, **{op: Missing(op)})


def _rewrite(source: Path, target: Path, add: dict[str, np.ndarray]) -> Path:
    """The file with tensors added."""
    reader = GGUFReader(source)
    arch = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(target, arch)
    for field in reader.fields.values():
        if field.name.startswith(("GGUF.", "general.architecture")):
            continue
        kind = field.types[0]
        sub = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in add.items():
        writer.add_tensor(name, values, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_blocks_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    """An MTP block after the layers, counted in block_count as converters do."""
    path = tiny_gguf(tmp_path / "a.gguf", "qwen35")
    more = tiny_gguf(tmp_path / "b.gguf", "qwen35", extra={"qwen35.block_count": 3})
    ones = np.ones((64, 128), np.float32)
    both = _rewrite(
        more,
        tmp_path / "c.gguf",
        {"blk.2.nextn.eh_proj.weight": ones, "blk.2.attn_norm.weight": ones[:, 0].copy()},
    )
    a, b = Driver(path, ops="ref"), Driver(both, ops="ref")
    assert len(b.model.state_specs()) == 2
    assert torch.equal(a.prefill(a.state(), TOKENS), b.prefill(b.state(), TOKENS))


@pytest.mark.parametrize("suffix", [".scale", ".weight.scale"])
def test_a_scale_beside_a_matrix_multiplies_its_product(tmp_path: Path, suffix: str) -> None:
    path = tiny_gguf(
        tmp_path / "a.gguf",
        "qwen35moe",
        formats={"*ffn_*_exps*": "NVFP4"},
        hidden=64,
        moe=MoeShape(ffn=64),
    )
    two = np.full(1, 2, np.float32)
    each = np.linspace(1, 2, 6, dtype=np.float32)
    scaled = _rewrite(
        path,
        tmp_path / "b.gguf",
        {
            f"blk.0.attn_gate{suffix}": two,
            f"blk.1.attn_output{suffix}": two,
            f"blk.0.ffn_down_exps{suffix}": each,
        },
    )
    plain, d = Driver(path, ops="ref"), Driver(scaled, ops="ref")
    block = d.model.blocks[0]
    inner = block.delta.args.inner
    at = block.delta.args.channels
    mixed = block.delta.mixed
    assert mixed.scale is not None
    assert mixed.scale.tolist() == [1.0] * at + [2.0] * inner + [1.0] * 8
    spans = (Span(0, 3, RowKind.EXACT),)
    x = torch.randn(3, 64)
    want = plain.ops.linear(x, plain.model.blocks[0].delta.mixed, spans) * mixed.scale
    assert torch.equal(d.ops.linear(x, mixed, spans), want)
    experts = block.ffn.args.experts
    assert [e.down.scale[0].item() for e in experts] == pytest.approx(each.tolist())
    a = plain.prefill(plain.state(), TOKENS)
    b = d.prefill(d.state(), TOKENS)
    assert not torch.equal(a, b)


def test_one_key_head_serves_all_value_heads(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", "qwen35", delta=DeltaShape(k_heads=1, v_heads=3))
    d = Driver(path, ops="ref")
    assert d.prefill(d.state(), TOKENS).isfinite().all()
