"""Attention of exact rows: against the reference, and bit for bit against itself in other company."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pydflash.kernels.ops import AttnArgs, PagedKV, RowKind, StepBatch
from pydflash.kernels.ref import attention as ref
from pydflash.kernels.triton.attention import attention
from tests.backends import large
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

Tensor = torch.Tensor

BOUNDS = {"f32": 1e-5, "f16": 2e-3, "bf16": 8e-3, "q8_0": 8e-3}
"""Largest difference: keys, values and queries are rounded to f16 but for f32 pages; and a stored key may
round the other way, which is a larger step in the last two."""

TREE = (-1, 0, 0, 1, 1, 2, 3, 5, 6)


@pytest.fixture(autouse=True)
def _rows_alone(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    sum_rows_alone(device, monkeypatch)


def run(
    device: torch.device, qkv: Tensor, kv: PagedKV, args: AttnArgs, batch: StepBatch, **more: Any
) -> Tensor:
    """The kernels' result, on a copy of the pages."""
    out = attention(qkv.to(device), on(device, kv), on(device, args), on(device, batch), **more)
    return out.cpu()


def check(
    device: torch.device,
    args: AttnArgs,
    rows: list[Row],
    k: str = "f16",
    v: str = "f16",
    **how: Any,
) -> None:
    batch = step(*rows, **how)
    kv = filled(args, rows, k, v)
    qkv = random_qkv(args, batch.cu_q[-1])
    got = run(device, qkv, kv, args, batch)
    want = ref.attention(qkv, kv, args, batch)
    bound = max(BOUNDS[k], BOUNDS[v])
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("f32", "f32"),
        ("f16", "f16"),
        ("bf16", "f16"),
        ("q8_0", "q8_0"),
        ("f16", "q8_0"),
        ("q8_0", "f32"),
        ("f32", "bf16"),
    ],
)
def test_formats_of_the_cache(device: torch.device, k: str, v: str) -> None:
    rows = [Row(70, 2, (5, 1, 3)), Row(31, 1, (2,)), Row(32, 1, (0, 4))]
    check(device, args_of(2, 1, rope=rope(64, interleaved=False)), rows, k, v)


@pytest.mark.parametrize("k", ["f32", "q8_0", "f16"])
def test_trees_in_every_format(device: torch.device, k: str) -> None:
    rows = [Row(60, 9, (5, 1, 3), parents=TREE), Row(31, 1, (2,))]
    args = args_of(2, 1, rope=rope(32, interleaved=True), q_norm=torch.rand(64) + 0.5)
    check(device, args, rows, k, k, ancestors=True)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(2, 2, 80), (6, 2, 64), (6, 1, 256), (8, 1, 128), (3, 1, 40), (70, 1, 32)],
)
def test_shapes_of_heads(device: torch.device, heads: int, kv_heads: int, head_dim: int) -> None:
    args = args_of(heads, kv_heads, head_dim)
    check(device, args, [Row(45, 1, (1, 0)), Row(0, 1, (2,))])


@pytest.mark.parametrize("window", [1, 40, 290])
def test_windows(device: torch.device, window: int) -> None:
    rows = [Row(310, 4, tuple(range(10)), parents=(-1, 0, 0, 1)), Row(40, 1, (11, 12))]
    check(device, args_of(2, 1, 32, window=window), rows, ancestors=True)


def test_soft_caps_and_scales(device: torch.device) -> None:
    rows = [Row(70, 2, (0, 1, 2))]
    check(device, args_of(2, 1, softcap=3.0), rows)
    check(device, args_of(2, 1, softcap=50.0), rows, "f32", "f32")
    check(device, args_of(2, 1, scale=20.0), rows, "f32", "f32")


def test_rows_that_begin_late(device: torch.device) -> None:
    """Pages before a row's first position may be anyone's, or of no number at all."""
    rows = [Row(610, 3, tuple(range(20)), parents=(-1, 0, 0)), Row(70, 1, (21, 22, 23))]
    args = args_of(2, 1, 32)
    batch = step(*rows, ancestors=True, first=[300, 0])
    kv = filled(args, rows, "f16", "f16")
    kv.k[:9] = float("nan")
    kv.v[:9] = float("nan")
    batch.page_table[0, :9] = -(2**30)
    qkv = random_qkv(args, 4)
    got = run(device, qkv, kv, args, batch)
    torch.testing.assert_close(got, ref.attention(qkv, kv, args, batch), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("base", "window"), [(0, 4), (30, None), (250, 4), (300, 100)])
def test_blocks_that_look_ahead(device: torch.device, base: int, window: int | None) -> None:
    args = args_of(2, 2, 32, causal=False, window=window)
    rows = [Row(base, 9, tuple(range(10))), Row(20, 3, (11, 12))]
    check(device, args, rows, first=[base // 2, 0], ancestors=True)


def test_gates_and_half_precision_results(device: torch.device) -> None:
    args = args_of(2, 1, 40, rope=rope(16, interleaved=False), q_norm=torch.randn(40), gated=True)
    rows = [Row(70, 3, (5, 1, 3), parents=(-1, 0, 0)), Row(31, 1, (2,))]
    check(device, args, rows, "f32", "f32", ancestors=True)
    batch = step(*rows, ancestors=True)
    kv, qkv = filled(args, rows, "f16", "f16"), random_qkv(args, 4)
    whole = run(device, qkv, kv, args, batch)
    half = run(device, qkv, kv, args, batch, out_dtype=torch.float16)
    assert torch.equal(half, whole.half())


def test_contexts_of_many_chunks(device: torch.device) -> None:
    """More chunks than are summed at once."""
    base = 17 * 256 + 3
    pages = tuple(torch.randperm(base // 32 + 1).tolist())
    args = args_of(24, 4, 256) if large(device) else args_of(2, 1, 32)
    kv = paged_random(args, len(pages))
    batch, qkv = step(Row(base, 2, pages)), random_qkv(args, 2)
    got = run(device, qkv, kv, args, batch)
    torch.testing.assert_close(got, ref.attention(qkv, kv, args, batch), rtol=2e-3, atol=2e-3)


def paged_random(args: AttnArgs, pages: int) -> PagedKV:
    shape = (pages, args.kv_heads, args.head_dim, 32)
    return PagedKV(
        k=torch.randn(shape).half(),
        v=torch.randn(shape).mT.contiguous().half(),
        k_format="f16",
        v_format="f16",
    )


def test_queries_that_are_nobodys_leave_no_trace(device: torch.device) -> None:
    """Padding of a captured step: a row of no tokens, and a last row with a page of its own."""
    args = args_of(2, 1)
    row = Row(40, 2, (1, 0))
    alone = step(row)
    kv, qkv = filled(args, [row, Row(0, 1, (2,))], "f16", "f16"), random_qkv(args, 5)
    padded = replace(
        step(row, Row(0, 3, (2,))),
        base=torch.tensor([40, 0, 0], dtype=torch.int32),
        starts=torch.tensor([0, 2, 2, 5], dtype=torch.int32),
        row_of=torch.tensor([0, 0, 2, 2, 2], dtype=torch.int32),
        page_table=torch.tensor([[1, 0], [0, 0], [2, 2]], dtype=torch.int32),
        kinds=(RowKind.EXACT,) * 3,
        cu_q=(0, 2, 2, 5),
        positions=torch.tensor([40, 41, 0, 0, 0], dtype=torch.int32),
        write_slots=torch.tensor([8, 9, 64, 64, 64], dtype=torch.int32),
    )
    got = run(device, qkv, kv, args, padded)[:2]
    assert torch.equal(got, run(device, qkv[:2], kv, args, alone))


@pytest.mark.parametrize(
    ("k", "base", "heads"),
    [("f16", 27, (2, 1)), ("q8_0", 250, (3, 1)), ("f32", 0, (2, 2)), ("bf16", 509, (2, 1))],
)
def test_nodes_have_the_bits_of_plain_decoding(
    device: torch.device, k: str, base: int, heads: tuple[int, int]
) -> None:
    """Each node of a tree, among other rows, and the same token decoded alone along its path, in a wider
    page table; as a chain without ancestors, too."""
    window = 290 if base == 509 else None
    args = args_of(*heads, 32, rope=rope(32, interleaved=False), window=window)
    if device.type == "cuda":
        base += 5120
        turn = rope(64, interleaved=False, positions=6000)
        args = args_of(24, 4, 256, rope=turn, window=window, k_norm=torch.rand(256) + 0.5)
    last = (base + 8) // 32 + 1
    tree = Row(base, 9, tuple(range(last, 0, -1)), parents=TREE)
    others = [
        Row(33, 1, (last + 1, last + 2)),
        Row(3, 3, (last + 3,), parents=(-1, 0, 0)),
    ]
    kv = filled(args, [tree, *others], k, k)
    qkv = random_qkv(args, 13)
    got = run(device, qkv, kv, args, step(tree, *others, ancestors=True))
    for leaf in range(9) if large(device) else (4, 8):
        path = [leaf]
        while TREE[path[0]] >= 0:
            path.insert(0, TREE[path[0]])
        pages = on(device, kv)
        for t, node in enumerate(path):
            row = replace(tree, base=base + t, tokens=1, parents=None, pages=tree.pages + (0,) * 7)
            one = attention(
                qkv[node : node + 1].to(device), pages, on(device, args), on(device, step(row))
            )
            assert torch.equal(one[0].cpu(), got[node]), (leaf, node)
        chain = replace(tree, tokens=len(path), parents=None)
        together = run(device, qkv[[*path, 9]], kv, args, step(chain, others[0]))
        assert torch.equal(together[: len(path)], got[path])
    alone = run(device, qkv[9:10], kv, args, step(others[0]))
    assert torch.equal(alone[0], got[9])
