"""Attention of prompts: against the reference, whole and in pieces."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pydflash.kernels.ops import AttnArgs, RowKind
from pydflash.kernels.ref import attention as ref
from pydflash.kernels.triton.attention import attention
from tests.kernels.cpu_cases import Row
from tests.kernels.triton.attention_cases import (
    args_of,
    filled,
    on,
    random_qkv,
    rope,
    step,
    sum_rows_alone,
)

PREFILL = RowKind.PREFILL


def check(
    device: torch.device,
    args: AttnArgs,
    rows: list[Row],
    k: str = "f16",
    v: str = "f16",
    bound: float = 2e-3,
    **how: Any,
) -> None:
    batch = step(*rows, **how)
    kv, qkv = filled(args, rows, k, v), random_qkv(args, batch.cu_q[-1])
    got = attention(qkv.to(device), on(device, kv), on(device, args), on(device, batch))
    want = ref.attention(qkv, kv, args, batch)
    torch.testing.assert_close(got.cpu(), want, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("k", "v", "bound"),
    [
        ("f32", "f32", 1e-5),
        ("f16", "f16", 2e-3),
        ("bf16", "q8_0", 8e-3),
        ("q8_0", "f32", 8e-3),
    ],
)
def test_prompts_beside_decoding(device: torch.device, k: str, v: str, bound: float) -> None:
    rows = [Row(31, 1, (2,)), Row(70, 5, (5, 1, 3), PREFILL), Row(0, 33, (0, 4), PREFILL)]
    args = args_of(2, 1, 64, rope=rope(32, interleaved=False), k_norm=torch.rand(64) + 0.5)
    check(device, args, rows, k, v, bound, ancestors=True)


@pytest.mark.parametrize("more", [{"window": 9}, {"window": 90}, {"softcap": 3.0}, {"gated": True}])
def test_windows_caps_and_gates(device: torch.device, more: dict[str, Any]) -> None:
    """Also the tiles of queries that a row needs more than one of."""
    check(device, args_of(1, 1, 40, **more), [Row(37, 131, tuple(range(6)), PREFILL)])


def test_prompts_that_begin_late(device: torch.device) -> None:
    rows = [Row(70, 3, (0, 1, 2), PREFILL), Row(100, 5, (3, 4, 5, 6), PREFILL)]
    check(device, args_of(2, 2, 32), rows, first=[0, 70])


def test_blocks_that_look_ahead_do_not_in_a_prompt(device: torch.device) -> None:
    check(device, args_of(2, 2, 32, causal=False), [Row(0, 40, (1, 0), PREFILL)])


@pytest.mark.parametrize("k", ["f16", "q8_0"])
def test_pieces_of_a_prompt_agree(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, k: str
) -> None:
    """In one piece or in two, the same bits."""
    sum_rows_alone(device, monkeypatch)
    args = args_of(1, 1, 32, rope=rope(32, interleaved=True))
    count, cut = 150, 61
    if device.type == "cuda":
        args = args_of(24, 4, 256, rope=rope(64, interleaved=True))
        count, cut = 2000, 777
    row = Row(0, count, tuple(range(count // 32 + 1)), PREFILL)
    kv, qkv = on(device, filled(args, [row], k, k)), random_qkv(args, count).to(device)
    layer = on(device, args)
    whole = attention(qkv, on(device, kv), layer, on(device, step(row)))
    first = attention(qkv[:cut], kv, layer, on(device, step(replace(row, tokens=cut))))
    later = replace(row, base=cut, tokens=count - cut)
    rest = attention(qkv[cut:], kv, layer, on(device, step(later)))
    assert torch.equal(torch.cat((first, rest)), whole)
