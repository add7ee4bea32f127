"""A layer's middle on partial sums: the bits that it gives on the finished product."""

from dataclasses import replace

import pytest
import torch

from pydflash.kernels.triton import pointwise
from pydflash.kernels.triton.attention import attention
from pydflash.kernels.triton.delta import delta
from pydflash.kernels.triton.sums import Sums
from tests.backends import large
from tests.kernels.cpu_cases import Row
from tests.kernels.triton.attention_cases import (
    args_of,
    filled,
    on,
    random_qkv,
    rope,
    same_pages,
    step,
)
from tests.kernels.triton.test_delta import (
    EXACT,
    REAL,
    TREE,
    args_on,
    assert_same,
    copy_of,
    mixed,
    store,
)
from tests.kernels.triton.test_delta import step as delta_step

Tensor = torch.Tensor
SLOTS = 5


def parted(like: Tensor) -> tuple[Sums, Tensor]:
    """Partial sums of `like`'s shape, NaN where a column has no more of them, and their finished sum."""
    T, N = like.shape
    parts = torch.randn(SLOTS, T, N, device=like.device)
    counts = torch.randint(1, SLOTS + 1, (N,), device=like.device).int()
    missing = torch.arange(SLOTS, device=like.device)[:, None, None] >= counts
    parts.masked_fill_(missing, float("nan"))
    return Sums(parts, counts), pointwise.finish(parts, counts, residual=None, bias=None)


@pytest.mark.parametrize("sizes", [(2, 4, 16, 16, 4), (1, 1, 128, 40, 4)])
@pytest.mark.parametrize("tree", [True, False])
def test_delta(device: torch.device, sizes: tuple[int, ...], tree: bool) -> None:
    a = args_on(device, REAL if large(device) and sizes[0] == 2 else sizes)
    count = len(TREE) if tree else 1
    batch = delta_step(device, [(count, EXACT)], TREE if tree else None)
    sums, whole = parted(mixed(a, count))
    mine = store(a, 1)
    theirs = copy_of(mine)
    assert torch.equal(delta(sums, mine, a, batch), delta(whole, theirs, a, batch))
    assert_same(mine, theirs)
    assert mine.tape is not None
    assert theirs.tape is not None
    for name in ("k", "delta", "decay", *(["rows"] if tree else [])):  # a token alone leaves no row
        assert torch.equal(getattr(mine.tape, name)[:count], getattr(theirs.tape, name)[:count])


@pytest.mark.parametrize("format_", ["f16", "q8_0"])
def test_attention(device: torch.device, format_: str) -> None:
    norm = torch.rand(64) + 0.5
    args = args_of(rope=rope(32, interleaved=False), gated=True, q_norm=norm, k_norm=norm + 0.1)
    rows = [Row(37, 3, (1, 2), parents=(-1, 0, 0)), Row(5, 1, (3,))]
    mine = on(device, filled(args, rows, format_, format_))
    theirs = replace(mine, **{n: getattr(mine, n).clone() for n in ("k", "v")})
    if mine.k_scale is not None and mine.v_scale is not None:
        theirs = replace(theirs, k_scale=mine.k_scale.clone(), v_scale=mine.v_scale.clone())
    args, batch = on(device, args), on(device, step(*rows, ancestors=True))
    sums, whole = parted(random_qkv(args, 4).to(device))
    got = attention(sums, mine, args, batch)
    assert torch.isfinite(got).all()
    assert torch.equal(got, attention(whole, theirs, args, batch))
    assert same_pages(mine, theirs)
