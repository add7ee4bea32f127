"""Norm, rotation and store of keys and values, against the reference; and places that are copied."""

from typing import Any

import pytest
import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import AttnArgs, PagedKV, StepBatch
from pydflash.kernels.ref import attention as ref
from pydflash.kernels.triton.attention import attention
from pydflash.kernels.triton.rope_store import store_kv
from pydflash.kernels.triton.slots import copy_slots
from tests.kernels.cpu_cases import Row, paged_kv
from tests.kernels.triton.attention_cases import (
    args_of,
    filled,
    on,
    random_qkv,
    rope,
    same_pages,
    step,
)

Tensor = torch.Tensor

FORMATS = [("f32", "f16"), ("bf16", "q8_0"), ("q8_0", "bf16"), ("q8_0", "q8_0")]


def stored(
    device: torch.device, pairs: Tensor, kv: PagedKV, args: AttnArgs, batch: StepBatch
) -> PagedKV:
    pages = on(device, kv)
    store_kv(pairs.to(device), pages, on(device, args), on(device, batch))
    return on(torch.device("cpu"), pages)


@pytest.mark.parametrize(("k", "v"), FORMATS)
def test_stores_what_was_given_to_the_bit(device: torch.device, k: str, v: str) -> None:
    """Without norm and rotation there is nothing to round differently. Row 3 is all zeros."""
    args = args_of(2, 2, 64)
    batch = step(Row(30, 4, (1, 2)))
    pairs = torch.randn(4, 2 * 2 * 64) * 3
    pairs[3] = 0
    kv = paged_kv(args, 3, k, v)
    want = on(torch.device("cpu"), kv)
    ref.store_kv(pairs, want, args, batch)
    got = stored(device, pairs, kv, args, batch)
    if device.type == "cpu" and "bf16" in (k, v):  # the interpreter rounds to bf16 towards zero
        torch.testing.assert_close(got.k, want.k, rtol=2**-7, atol=0, equal_nan=True)
        torch.testing.assert_close(got.v, want.v, rtol=2**-7, atol=0, equal_nan=True)
    else:
        assert same_pages(got, want)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "dims"), [(64, 64), (80, 32), (256, 64)])
def test_norms_and_rotates_keys(
    device: torch.device, interleaved: bool, head_dim: int, dims: int
) -> None:
    args = args_of(
        1,
        1,
        head_dim,
        rope=rope(dims, interleaved=interleaved),
        k_norm=torch.rand(head_dim) + 0.5,
        eps=0.1,
    )
    batch = step(Row(100, 2, (3, 2, 1, 0)), Row(7, 1, (4,)))
    wide = torch.randn(3, 2 * head_dim + 5)
    pairs = wide[:, 3:-2]  # rows that lie apart
    kv = paged_kv(args, 5, "f32", "f32")
    want = on(torch.device("cpu"), kv)
    ref.store_kv(pairs, want, args, batch)
    pages = on(device, kv)
    store_kv(wide.to(device)[:, 3:-2], pages, on(device, args), on(device, batch))
    torch.testing.assert_close(pages.k.cpu(), want.k, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.equal(pages.v.cpu().nan_to_num(), want.v.nan_to_num())


def test_attention_stores_as_store_kv_does(device: torch.device) -> None:
    args = args_of(2, 1, 64, rope=rope(32, interleaved=True), k_norm=torch.rand(64), gated=True)
    batch, kv = step(Row(0, 3, (1,))), paged_kv(args, 2, "q8_0", "f16")
    qkv = random_qkv(args, 3)
    pages = on(device, kv)
    attention(qkv.to(device), pages, on(device, args), on(device, batch))
    alone = stored(device, qkv[:, 4 * 64 :], kv, args, batch)
    assert same_pages(on(torch.device("cpu"), pages), alone)


@pytest.mark.parametrize(("k", "v"), FORMATS)
@pytest.mark.parametrize("head_dim", [32, 96])
def test_copies_read_before_they_write(device: torch.device, k: str, v: str, head_dim: int) -> None:
    args = args_of(2, 2, head_dim)
    kv = filled(args, [Row(40, 1, (2, 1))], k, v)
    src = torch.tensor([67, 68, 39, 69, 34], dtype=torch.int32)
    dst = torch.tensor([68, 67, 1, 34, 69], dtype=torch.int32)
    want = on(torch.device("cpu"), kv)
    ref.copy_slots([want], src, dst)
    assert not same_pages(kv, want)
    pages = on(device, kv)
    copy_slots([pages], src.to(device), dst.to(device))
    assert same_pages(pages, want)


def test_layers_of_several_shapes_move_together(device: torch.device) -> None:
    row, small, large = [Row(40, 1, (2, 1))], args_of(2, 2, 32), args_of(2, 1, 96)
    shapes = [(small, "q8_0", "f16"), (large, "q8_0", "f16"), (small, "f16", "f16")]
    layers = [filled(args, row, k, v) for args, k, v in 2 * shapes]
    src, dst = (torch.tensor(n, dtype=torch.int32) for n in ([67, 39, 34], [68, 1, 69]))
    want = [on(torch.device("cpu"), kv) for kv in layers]
    pages = [on(device, kv) for kv in layers]
    for some in (
        slice(6),
        slice(3),
    ):  # the second time another list that begins with the same layer
        ref.copy_slots(want[some], src, dst)
        copy_slots(pages[some], src.to(device), dst.to(device))
        src = dst.flip(0)
        assert all(same_pages(a, b) for a, b in zip(pages, want, strict=True))


@pytest.mark.parametrize("count", [0, 100, 600])
def test_copies_of_many_places(device: torch.device, count: int) -> None:
    args = args_of(1, 1, 32)
    kv = filled(args, [Row(640, 1, tuple(range(21)))], "f16", "q8_0")
    src, dst = (torch.randperm(640)[:count].int() for _ in range(2))
    want, pages = on(torch.device("cpu"), kv), on(device, kv)
    ref.copy_slots([want], src, dst)
    copy_slots([pages], src.to(device), dst.to(device))
    assert same_pages(pages, want)


@pytest.mark.parametrize(
    ("shape", "k", "words"),
    [((2, 1, 80), "q8_0", "whole 32 dimensions"), ((3, 2, 64), "f16", "whole groups")],
)
def test_refuses_what_it_cannot_do(
    device: torch.device, shape: tuple[int, int, int], k: str, words: str
) -> None:
    args = args_of(*shape)
    kv: Any = paged_kv(args, 1, k, k)
    with pytest.raises(UnsupportedError, match=words):
        attention(random_qkv(args, 1), kv, args, step(Row(0, 1, (0,))))
