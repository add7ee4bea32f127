"""CPU attention: against float64, and bit for bit against itself in other company."""

from dataclasses import replace

import pytest
import torch

from pydflash.kernels.cpu import library as cpu_library
from pydflash.kernels.cpu.ops import build_ops
from pydflash.kernels.ops import AttnArgs, OpTable, PagedKV, Rope, RowKind, StepBatch
from tests.kernels.cpu_cases import Row, fill, naive_attention, paged_kv, quantized, step

Tensor = torch.Tensor

CPU = torch.device("cpu")
PREFILL = RowKind.PREFILL


@pytest.fixture(scope="module")
def ops() -> OpTable:
    return build_ops(CPU, 2)


def rope(dims: int, *, interleaved: bool, positions: int = 1024) -> Rope:
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(0, dims, 2) / dims)
    return Rope(cos=angles.cos(), sin=angles.sin(), dims=dims, interleaved=interleaved)


def args_of(heads: int = 6, kv_heads: int = 2, head_dim: int = 64, **more: object) -> AttnArgs:
    base = AttnArgs(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, scale=head_dim**-0.5, rope=None
    )
    return replace(base, **more)  # type: ignore[arg-type]


def random_qkv(args: AttnArgs, tokens: int) -> Tensor:
    return torch.randn(tokens, (args.heads + 2 * args.kv_heads) * args.head_dim)


def random_past(args: AttnArgs, length: int) -> tuple[Tensor, Tensor]:
    shape = (length, args.kv_heads, args.head_dim)
    return torch.randn(shape), torch.randn(shape)


def copy_of(kv: PagedKV) -> PagedKV:
    return replace(
        kv,
        k=kv.k.clone(),
        v=kv.v.clone(),
        k_scale=None if kv.k_scale is None else kv.k_scale.clone(),
        v_scale=None if kv.v_scale is None else kv.v_scale.clone(),
    )


def filled(
    args: AttnArgs, rows: list[Row], pasts: list[tuple[Tensor, Tensor]], k: str, v: str
) -> PagedKV:
    kv = paged_kv(args, 1 + max(max(row.pages) for row in rows), k, v)
    for row, past in zip(rows, pasts, strict=True):
        fill(kv, args, row, *past)
    return kv


def check(ops: OpTable, args: AttnArgs, rows: list[Row], k: str = "f16", v: str = "f16") -> None:
    pasts = [random_past(args, row.base) for row in rows]
    kv = filled(args, rows, pasts, k, v)
    batch = step(*rows)
    qkv = random_qkv(args, batch.cu_q[-1])
    got = ops.attention(qkv, kv, args, batch)
    for r, row in enumerate(rows):
        own = slice(batch.cu_q[r], batch.cu_q[r + 1])
        want = naive_attention(qkv[own], pasts[r], row.base, args, kv)
        torch.testing.assert_close(got[own].double(), want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("f32", "f32"),
        ("f16", "f16"),
        ("bf16", "f16"),
        ("q8_0", "q8_0"),
        ("f16", "q8_0"),
        ("q8_0", "f32"),
    ],
)
def test_attention_kv_formats(ops: OpTable, k: str, v: str) -> None:
    rows = [
        Row(70, 3, (5, 1, 3)),
        Row(31, 1, (2,)),
        Row(32, 1, (0, 4)),
        Row(0, 40, (6, 7), PREFILL),
    ]
    # the bound of a stored key whose rounding fell the other way
    check(ops, args_of(rope=rope(64, interleaved=False)), rows, k, v)


@pytest.mark.parametrize("head_dim", [32, 40, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (8, 1)])
def test_attention_head_shapes(ops: OpTable, head_dim: int, heads: int, kv_heads: int) -> None:
    rows = [Row(45, 2, (1, 0)), Row(0, 7, (2,), PREFILL)]
    check(ops, args_of(heads, kv_heads, head_dim), rows, "f32", "f16")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [64, 32])
def test_attention_rope_and_norms(ops: OpTable, interleaved: bool, dims: int) -> None:
    args = args_of(
        rope=rope(dims, interleaved=interleaved),
        q_norm=torch.rand(64) + 0.5,
        k_norm=torch.rand(64) + 0.5,
    )
    check(ops, args, [Row(100, 2, (3, 2, 1, 0)), Row(0, 33, (5, 4), PREFILL)], "f32", "f32")


@pytest.mark.parametrize("window", [1, 5, 32, 40, 300])
def test_attention_window(ops: OpTable, window: int) -> None:
    rows = [Row(310, 2, tuple(range(10))), Row(0, 90, (10, 11, 12), PREFILL)]
    check(ops, args_of(window=window), rows)


def test_attention_softcap(ops: OpTable) -> None:
    check(ops, args_of(softcap=3.0), [Row(70, 2, (0, 1, 2)), Row(0, 35, (3, 4), PREFILL)])


def test_attention_long_context_over_segments(ops: OpTable) -> None:
    check(ops, args_of(3, 1, 32), [Row(700, 2, tuple(range(22)))])
    check(ops, args_of(3, 1, 32), [Row(0, 600, tuple(range(19)), PREFILL)])


def test_attention_large_scores(ops: OpTable) -> None:
    check(
        ops,
        args_of(scale=20.0),
        [Row(70, 4, (0, 1, 2)), Row(300, 1, tuple(range(3, 13)))],
        "f32",
        "f32",
    )


def test_attention_stores_keys_as_gguf_does(ops: OpTable) -> None:
    args = args_of(2, 2, 64)
    kv = paged_kv(args, 2, "q8_0", "q8_0")
    qkv = random_qkv(args, 20)
    qkv[3] = 0
    ops.attention(
        qkv, kv, args, step(Row(25, 20, (0, 1), PREFILL)) if False else step(Row(0, 20, (1,)))
    )
    x = qkv.view(20, 6, 64)
    assert kv.k_scale is not None
    assert kv.v_scale is not None
    codes, d = quantized(x[:, 2:4])
    assert torch.equal(kv.k[1, :, :, :20].permute(2, 0, 1), codes)
    assert torch.equal(kv.k_scale[1, :, :, :20].permute(2, 0, 1), d)
    codes, d = quantized(x[:, 4:])
    assert torch.equal(kv.v[1, :, :20].transpose(0, 1), codes)
    assert torch.equal(kv.v_scale[1, :, :20].transpose(0, 1), d)
    assert torch.all(kv.k[0] == 77)


@pytest.mark.parametrize("k", ["f16", "q8_0"])
@pytest.mark.parametrize("base", [61, 300, 509])
def test_attention_row_invariance(k: str, base: int) -> None:
    """A chain at once, token by token, in other company, as prefill, with 1 or 2 threads: the same bits."""
    args = args_of(rope=rope(64, interleaved=True), window=290)
    rows = [Row(base, 9, tuple(range(20))), Row(40, 2, (21, 22))]
    pasts = [random_past(args, row.base) for row in rows]
    start = filled(args, rows, pasts, k, k)
    qkv = random_qkv(args, 11)
    results = []
    for threads in (1, 2):
        ops = build_ops(CPU, threads)
        results.append(ops.attention(qkv, copy_of(start), args, step(*rows)))
        results.append(
            ops.attention(qkv, copy_of(start), args, step(replace(rows[0], kind=PREFILL), rows[1]))
        )
        for one_by_one in (copy_of(start),):
            alone = [
                ops.attention(
                    qkv[t : t + 1],
                    one_by_one,
                    args,
                    step(replace(rows[0], base=base + t, tokens=1)),
                )
                for t in range(9)
            ]
            alone.append(ops.attention(qkv[9:], one_by_one, args, step(rows[1])))
            results.append(torch.cat(alone))
    for other in results[1:]:
        assert torch.equal(results[0], other)


@pytest.mark.parametrize("base", [0, 20, 27, 32, 60, 500])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("k", ["f16", "q8_0"])
def test_attention_tree_path_is_its_chain(base: int, threads: int, k: str) -> None:
    """Every node of a tree has the bits of plain decoding along its path."""
    ops = build_ops(CPU, threads)
    args = args_of(rope=rope(64, interleaved=False))
    parents = (-1, 0, 0, 1, 1, 2, 3, 5, 6, 6)
    tree = Row(base, 10, tuple(range(18, 0, -1)), parents=parents)
    other = Row(33, 1, (20, 21))
    pasts = [random_past(args, base), random_past(args, 33)]
    start = filled(args, [tree, other], pasts, k, k)
    qkv = random_qkv(args, 11)
    got = ops.attention(qkv, copy_of(start), args, step(tree, other, ancestors=True))
    for leaf in range(10):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        kv = copy_of(start)
        for t, node in enumerate(path):
            row = replace(tree, base=base + t, tokens=1, parents=None)
            out = ops.attention(qkv[node : node + 1], kv, args, step(row))
            assert torch.equal(out[0], got[node]), (leaf, node)
    alone = ops.attention(qkv[10:], copy_of(start), args, step(other))
    assert torch.equal(alone[0], got[10])


def test_attention_isa_invariance(ops: OpTable) -> None:
    args = args_of(rope=rope(64, interleaved=True), softcap=20.0, q_norm=torch.rand(64))
    rows = [Row(290, 5, tuple(range(12))), Row(0, 40, (13, 14), PREFILL)]
    start = filled(args, rows, [random_past(args, r.base) for r in rows], "f16", "q8_0")
    qkv, batch = random_qkv(args, 45), step(*rows)
    library = cpu_library.load()
    assert library is not None
    best = ops.attention(qkv, copy_of(start), args, batch)
    try:
        cpu_library.select(library, "portable")
        portable = ops.attention(qkv, copy_of(start), args, batch)
    finally:
        cpu_library.select(library)
    assert torch.equal(best, portable)


def test_copy_slots_reads_before_it_writes(ops: OpTable) -> None:
    args = args_of(2, 2, 32)
    row = Row(40, 1, (0, 1))
    kv = filled(args, [row], [random_past(args, 40)], "q8_0", "f16")
    want = copy_of(kv)
    src = torch.tensor([3, 4, 39, 5], dtype=torch.int32)
    dst = torch.tensor([4, 3, 1, 38], dtype=torch.int32)
    ops.copy_slots([kv], src, dst)

    def places(cache: PagedKV, slots: Tensor) -> list[Tensor]:
        page, lane = slots.long() // 32, slots.long() % 32
        assert cache.k_scale is not None
        return [cache.k[page, :, :, lane], cache.k_scale[page, :, :, lane], cache.v[page, :, lane]]

    for got, expected in zip(places(kv, dst), places(want, src), strict=True):
        assert torch.equal(got, expected)
    untouched = torch.tensor([0, 2, 5, 37], dtype=torch.int32)
    for got, expected in zip(places(kv, untouched), places(want, untouched), strict=True):
        assert torch.equal(got, expected)


def test_attention_same_step_object_for_many_layers(ops: OpTable) -> None:
    args = args_of()
    batch: StepBatch = step(Row(0, 4, (0,)))
    qkv = random_qkv(args, 4)
    first = ops.attention(qkv, paged_kv(args, 1, "f16", "f16"), args, batch)
    again = ops.attention(qkv, paged_kv(args, 1, "f16", "f16"), args, batch)
    assert torch.equal(first, again)


def test_gates_multiply_the_heads(ops: OpTable) -> None:
    """[q | gate] heads against plain ones times sigmoid(gate), a tree and a prompt among the rows."""
    plain = args_of(head_dim=40, rope=rope(16, interleaved=False), q_norm=torch.randn(40))
    args = replace(plain, gated=True)
    rows = [
        Row(70, 3, (5, 1, 3), parents=(-1, 0, 0)),
        Row(31, 1, (2,)),
        Row(0, 40, (4, 6), kind=PREFILL),
    ]
    pasts = [random_past(args, row.base) for row in rows]
    batch = step(*rows, ancestors=True)
    kv, other = (filled(args, rows, pasts, "f16", "f16") for _ in range(2))
    H, D, T = args.heads, args.head_dim, batch.cu_q[-1]
    q, gate = torch.randn(2, T, H, D)
    rest = torch.randn(T, 2 * args.kv_heads * D)
    packed = torch.cat((torch.stack((q, gate), 2).flatten(1), rest), 1)
    got = ops.attention(packed, kv, args, batch)
    want = ops.attention(torch.cat((q.flatten(1), rest), 1), other, plain, batch)
    torch.testing.assert_close(got, want * gate.sigmoid().flatten(1), rtol=1e-5, atol=1e-6)
    assert torch.equal(kv.k.nan_to_num(), other.k.nan_to_num())
    assert torch.equal(kv.v.nan_to_num(), other.v.nan_to_num())
