"""Blocks that look ahead, rows that begin late, and stores without attention: reference and CPU kernels."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from pydflash.kernels.cpu.ops import build_ops
from pydflash.kernels.ops import PAGE_SIZE, AttnArgs, OpTable, PagedKV, Rope, RowKind
from pydflash.kernels.ref.ops import build_ops as build_reference
from tests.kernels.cpu_cases import Row, normed, paged_kv, rotated, step, stored

Tensor = torch.Tensor

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["ref", "cpu"])
def ops(request: pytest.FixtureRequest) -> OpTable:
    return build_reference(CPU) if request.param == "ref" else build_ops(CPU, 2)


def rope(dims: int) -> Rope:
    angles = torch.arange(1024)[:, None] * 10000.0 ** (-torch.arange(0, dims, 2) / dims)
    return Rope(cos=angles.cos(), sin=angles.sin(), dims=dims, interleaved=False)


def args_of(heads: int = 6, kv_heads: int = 2, head_dim: int = 64, **more: object) -> AttnArgs:
    base = AttnArgs(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope(head_dim),
        q_norm=torch.rand(head_dim) + 0.5,
        k_norm=torch.rand(head_dim) + 0.5,
        causal=False,
    )
    return replace(base, **more)  # type: ignore[arg-type]


def store_past(
    ops: OpTable, kv: PagedKV, args: AttnArgs, row: Row, pairs: Tensor, first: int
) -> None:
    """Store pairs [n, 2G * D] at positions first.. of the row."""
    if len(pairs):
        past = replace(row, base=first, tokens=len(pairs), kind=RowKind.EXACT, parents=None)
        ops.store_kv(pairs, kv, args, step(past))


def naive(qkv: Tensor, pairs: Tensor, first: int, row: Row, args: AttnArgs, kv: PagedKV) -> Tensor:
    """float64: the row's tokens over positions first.. and over their own row, by an explicit mask."""
    H, G, D = args.heads, args.kv_heads, args.head_dim
    own = qkv.double().view(-1, H + 2 * G, D)
    past = pairs.double().view(-1, 2, G, D)
    k = torch.cat((past[:, 0], own[:, H : H + G]))
    v = torch.cat((past[:, 1], own[:, H + G :]))
    k = torch.stack(
        [rotated(normed(x, args.k_norm, args.eps), first + i, args) for i, x in enumerate(k)]
    )
    keys = stored(k.float(), kv.k_format).repeat_interleave(H // G, 1)
    values = stored(v.float(), kv.v_format).repeat_interleave(H // G, 1)
    at = first + torch.arange(len(keys))
    out = []
    for t, x in enumerate(own):
        here = row.base + t
        q = rotated(normed(x[:H], args.q_norm, args.eps), here, args)
        ahead = at - here
        seen = ahead < (args.window or 10**6)
        seen &= -ahead < (args.window or 10**6)
        if args.causal or row.kind is RowKind.PREFILL:
            seen &= ahead <= 0
        scores = torch.einsum("hd,shd->hs", q, keys[seen]) * args.scale
        out.append(torch.einsum("hs,shd->hd", scores.softmax(-1), values[seen]).flatten())
    return torch.stack(out)


def check(
    ops: OpTable, args: AttnArgs, rows: Sequence[Row], first: Sequence[int], form: str = "f32"
) -> None:
    kv = paged_kv(args, 1 + max(max(row.pages) for row in rows), form, form)
    width = 2 * args.kv_heads * args.head_dim
    pasts = [torch.randn(row.base - low, width) for row, low in zip(rows, first, strict=True)]
    for row, past, low in zip(rows, pasts, first, strict=True):
        store_past(ops, kv, args, row, past, low)
    batch = replace(step(*rows), first=torch.tensor(first, dtype=torch.int32))
    qkv = torch.randn(batch.cu_q[-1], (args.heads + 2 * args.kv_heads) * args.head_dim)
    got = ops.attention(qkv, kv, args, batch)
    for r, row in enumerate(rows):
        own = slice(batch.cu_q[r], batch.cu_q[r + 1])
        want = naive(qkv[own], pasts[r], first[r], row, args, kv)
        # otherwise a stored number may round the other way
        bound = 3e-5 if form == "f32" else 1e-3 if form == "f16" else 2e-2
        torch.testing.assert_close(got[own].double(), want, rtol=bound, atol=bound)


ROWS = [
    Row(70, 8, (5, 1, 3)),
    Row(31, 3, (2, 8)),
    Row(64, 1, (9, 10, 11)),
    Row(40, 25, (0, 4, 6), RowKind.PREFILL),
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("first", [(0, 0, 0, 0), (33, 31, 5, 37), (70, 30, 63, 40)])
@pytest.mark.parametrize("window", [None, 1, 4, 17, 64])
def test_what_a_row_sees(
    ops: OpTable, causal: bool, first: tuple[int, ...], window: int | None
) -> None:
    """Every combination; the cache holds NaN wherever nothing was stored."""
    check(ops, args_of(causal=causal, window=window), ROWS, first)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_head_shapes(ops: OpTable, head_dim: int, heads: int, kv_heads: int, causal: bool) -> None:
    check(ops, args_of(heads, kv_heads, head_dim, causal=causal), ROWS, (3, 30, 64, 0), "f16")


@pytest.mark.parametrize("causal", [True, False])
def test_quantised_pages(ops: OpTable, causal: bool) -> None:
    check(ops, args_of(causal=causal, window=40), ROWS, (3, 30, 64, 0), "q8_0")


def test_long_blocks_over_segments(ops: OpTable) -> None:
    check(ops, args_of(3, 1, 32), [Row(500, 100, tuple(range(19)))], [290])


def test_a_tree_that_begins_late(ops: OpTable) -> None:
    """Nodes of a tree over a row whose first positions were never stored."""
    args = args_of(causal=True)
    tree = Row(45, 5, (3, 1), parents=(-1, 0, 0, 1, 2))
    kv = paged_kv(args, 4, "f16", "f16")
    store_past(ops, kv, args, tree, torch.randn(45 - 35, 2 * 2 * 64), 35)
    batch = replace(step(tree, ancestors=True), first=torch.tensor([35], dtype=torch.int32))
    qkv = torch.randn(5, 10 * 64)
    got = ops.attention(qkv, kv, args, batch)
    assert bool(got.isfinite().all())
    for path in ((0, 1, 3), (0, 2, 4)):
        chain = replace(tree, tokens=3, parents=None)
        alone = ops.attention(
            qkv[list(path)].contiguous(), kv, args, replace(step(chain), first=batch.first)
        )
        torch.testing.assert_close(alone, got[list(path)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 20])
def test_blocks_do_not_know_their_company(window: int | None) -> None:
    """A block alone, in company, with one thread or two: the same bits."""
    args = args_of(window=window)
    pasts = [torch.randn(row.base - 2, 4 * 64) for row in ROWS]
    qkv = torch.randn(sum(row.tokens for row in ROWS), 10 * 64)
    first = torch.full((len(ROWS),), 2, dtype=torch.int32)
    results = []
    for threads in (1, 2):
        ops = build_ops(CPU, threads)
        kv = paged_kv(args, 12, "f16", "f16")
        for row, past in zip(ROWS, pasts, strict=True):
            store_past(ops, kv, args, row, past, 2)
        batch = replace(step(*ROWS), first=first)
        results.append(ops.attention(qkv, kv, args, batch))
        results.append(
            torch.cat(
                [
                    ops.attention(
                        qkv[batch.cu_q[r] : batch.cu_q[r + 1]],
                        kv,
                        args,
                        replace(step(row), first=first[:1]),
                    )
                    for r, row in enumerate(ROWS)
                ]
            )
        )
    for other in results[1:]:
        assert torch.equal(results[0], other)


@pytest.mark.parametrize("form", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("tokens", [1, 3, 150])
def test_stores_what_attention_would(ops: OpTable, form: str, tokens: int) -> None:
    """The same pages as a step that attends too, from rows that lie apart."""
    args = args_of()
    row = Row(20, tokens, tuple(range(7)))
    stores, attends = (paged_kv(args, 8, form, form) for _ in range(2))
    wide = torch.randn(tokens, 2 * 4 * 64)
    pairs = wide[:, 4 * 64 :]
    ops.store_kv(pairs, stores, args, step(row))
    ops.attention(torch.cat((torch.zeros(tokens, 6 * 64), pairs), 1), attends, args, step(row))
    places = torch.arange(20, 20 + tokens)
    page, lane = places // PAGE_SIZE, places % PAGE_SIZE
    assert torch.equal(stores.k[page, :, :, lane], attends.k[page, :, :, lane])
    assert torch.equal(stores.v[page, :, lane], attends.v[page, :, lane])
    assert torch.equal(stores.k.float().nan_to_num(1), attends.k.float().nan_to_num(1))
    if form == "q8_0":
        assert stores.k_scale is not None
        assert attends.k_scale is not None
        assert torch.equal(stores.k_scale.nan_to_num(), attends.k_scale.nan_to_num())
