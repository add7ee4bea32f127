"""CPU delta: against the reference, and bit for bit against itself in other company."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.cpu import library as cpu_library
from pydflash.kernels.cpu.ops import build_ops
from pydflash.kernels.ops import (
    DeltaArgs,
    DeltaLayer,
    OpTable,
    Paths,
    Recurrent,
    RowKind,
    Span,
    StepBatch,
)
from pydflash.kernels.ref.delta import delta as reference
from pydflash.kernels.ref.ops import build_ops as build_reference
from tests.kernels.cpu_cases import random_weight
from tests.kernels.test_ref_delta import args, mixed, store

Tensor = torch.Tensor

CPU = torch.device("cpu")
EXACT, PREFILL = RowKind.EXACT, RowKind.PREFILL
SIZES = [(2, 4, 128, 128), (2, 4, 8, 8), (3, 3, 16, 4), (1, 3, 24, 40), (1, 2, 64, 100)]
TREE = (-1, 0, 0, 1, 1, 2, 3, 3, 0, 8, 9)


@pytest.fixture(autouse=True)
def _outputs_begin_as_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills what torch.empty gives
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def ops() -> OpTable:
    return build_ops(CPU, 2)


def step(rows: Sequence[tuple[int, RowKind]], parents: Sequence[int] | None = None) -> StepBatch:
    """Row r of (tokens, kind) in slot r; `parents` by token in the step, else chains."""
    cu = [0]
    for count, _ in rows:
        cu.append(cu[-1] + count)
    none = torch.zeros(cu[-1], dtype=torch.int32)
    exact = sum(n for n, kind in rows if kind is EXACT)
    return StepBatch(
        tokens=none,
        positions=none,
        row_of=torch.repeat_interleave(torch.tensor([n for n, _ in rows])).int(),
        kinds=tuple(kind for _, kind in rows),
        cu_q=tuple(cu),
        base=torch.zeros(len(rows), dtype=torch.int32),
        page_table=none[:, None],
        write_slots=none,
        slots=torch.arange(len(rows), dtype=torch.int32),
        ancestors=None,
        parents=None if parents is None else torch.tensor(parents, dtype=torch.int32),
        logit_rows=none[:0].long(),
        spans=(Span(0, exact, EXACT),),
        starts=torch.tensor(cu, dtype=torch.int32),
    )


def random_store(a: DeltaArgs, slots: int) -> Recurrent:
    r = store(a, slots)
    r.conv.normal_()
    r.state.normal_()
    return r


def copy_of(r: Recurrent, slot: int | None = None) -> Recurrent:
    own = slice(None) if slot is None else slice(slot, slot + 1)
    return Recurrent(conv=r.conv[own].clone(), state=r.state[own].clone())


def decode(ops: OpTable, a: DeltaArgs, x: Tensor, r: Recurrent) -> Tensor:
    """One token at a time in slot 0."""
    return torch.cat([ops.delta(x[t : t + 1], r, a, step([(1, EXACT)])) for t in range(len(x))])


def commit(ops: OpTable, r: Recurrent, nodes: list[int], slot: int = 0) -> None:
    ints = torch.tensor(nodes, dtype=torch.int32)
    where = torch.tensor([slot], dtype=torch.int32)
    starts = torch.tensor([0, len(nodes)], dtype=torch.int32)
    ops.delta_commit(r, Paths(slots=where, nodes=ints, cu=(0, len(nodes)), starts=starts))


def path_to(node: int, parents: Sequence[int] = TREE) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("sizes", SIZES)
def test_delta_against_the_reference(ops: OpTable, sizes: tuple[int, ...], width: int) -> None:
    a = args(*sizes, W=width)
    batch = step(
        [(1, EXACT), (11, EXACT), (1, EXACT), (33, PREFILL)],
        [-1, *(p + 1 if p >= 0 else -1 for p in TREE), -1, -1, *range(13, 45)],
    )
    mine, theirs = (r := random_store(a, 4)), copy_of(r)
    x = mixed(a, 46)
    got, want = ops.delta(x, mine, a, batch), reference(x, theirs, a, batch)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.state, theirs.state, rtol=1e-4, atol=1e-4)
    assert torch.equal(mine.conv, theirs.conv)
    assert mine.tape is not None
    assert theirs.tape is not None
    for name in ("k", "delta", "decay", "rows"):
        taped = getattr(mine.tape, name), getattr(theirs.tape, name)
        assert len(taped[0]) == 13
        torch.testing.assert_close(taped[0][1:12], taped[1][1:12], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_prompt_is_its_tokens(ops: OpTable, sizes: tuple[int, ...]) -> None:
    a = args(*sizes)
    x, mine = mixed(a, 70), random_store(a, 1)
    plain = copy_of(mine)
    want = decode(ops, a, x, plain)
    for cut in (1, 2, 3, 40):
        r = copy_of(mine)
        got = [ops.delta(p, r, a, step([(len(p), PREFILL)])) for p in (x[:cut], x[cut:])]
        assert torch.equal(torch.cat(got), want)
        assert torch.equal(r.state, plain.state)
        assert torch.equal(r.conv, plain.conv)
        assert r.tape is None


@pytest.mark.parametrize("sizes", SIZES)
def test_a_node_is_the_end_of_its_chain_and_commits_as_it(
    ops: OpTable, sizes: tuple[int, ...]
) -> None:
    a = args(*sizes)
    x, start = mixed(a, len(TREE)), random_store(a, 1)
    r = copy_of(start)
    got = ops.delta(x, r, a, step([(len(TREE), EXACT)], TREE))
    assert torch.equal(r.state, start.state)
    assert torch.equal(r.conv, start.conv)
    assert not got.isnan().any()
    for node in range(len(TREE)):
        path, plain, taken = path_to(node), copy_of(start), copy_of(start)
        assert torch.equal(got[node], decode(ops, a, x[path], plain)[-1])
        taken.tape = r.tape
        commit(ops, taken, path)
        assert torch.equal(taken.state, plain.state)
        assert torch.equal(taken.conv, plain.conv)


def test_any_tree_any_company_any_threads(ops: OpTable) -> None:
    """Rows of a step against each alone on one thread; several roots, deep and wide shapes."""
    alone = build_ops(CPU, 1)
    dice = torch.Generator().manual_seed(3)
    a = args(2, 4, 16, 48)
    for _ in range(8):
        counts = torch.randint(1, 14, (5,), generator=dice).tolist()
        kinds = [EXACT, EXACT, EXACT, PREFILL, PREFILL]
        own = [
            [int(torch.randint(-1, i, (1,), generator=dice)) if i else -1 for i in range(n)]
            for n in counts
        ]
        rows = list(zip(counts, kinds, strict=True))
        cu = [sum(counts[:i]) for i in range(6)]
        parents = [p + cu[i] if p >= 0 else -1 for i, ps in enumerate(own) for p in ps]
        x, start = mixed(a, sum(counts)), random_store(a, 5)
        r = copy_of(start)
        got = ops.delta(x, r, a, step(rows, parents))
        for i, row in enumerate(rows):
            single = copy_of(start, i)
            want = alone.delta(x[cu[i] : cu[i + 1]], single, a, step([row], own[i]))
            assert torch.equal(got[cu[i] : cu[i + 1]], want)
            assert torch.equal(r.state[i], single.state[0])
            assert torch.equal(r.conv[i], single.conv[0])
            if row[0] > 1 and row[1] is EXACT:
                end = path_to(row[0] - 1, own[i])
                commit(ops, r, [n + cu[i] for n in end], slot=i)
                commit(alone, single, end)
                assert torch.equal(r.state[i], single.state[0])
                assert torch.equal(r.conv[i], single.conv[0])


@pytest.mark.parametrize("sizes", SIZES[1:])
def test_every_instruction_set_gives_the_same_bits(ops: OpTable, sizes: tuple[int, ...]) -> None:
    library = cpu_library.load()
    assert library is not None
    a = args(*sizes)
    x, start = mixed(a, 12), random_store(a, 2)
    batch = step([(11, EXACT), (1, PREFILL)], [*TREE, -1])

    def results() -> list[Tensor]:
        r = copy_of(start)
        out = ops.delta(x, r, a, batch)
        commit(ops, r, path_to(10))
        return [out, r.state, r.conv]

    best = results()
    try:
        cpu_library.select(library, "portable")
        plain = results()
    finally:
        cpu_library.select(library)
    assert all(torch.equal(p, q) for p, q in zip(best, plain, strict=True))


@pytest.mark.parametrize("sizes", [(2, 4, 8, 8), (1, 3, 24, 40)])
def test_a_layer_is_its_parts_in_one_call(ops: OpTable, sizes: tuple[int, ...]) -> None:
    a, E = args(*sizes), 50
    rows = (a.channels, a.inner, a.v_heads, a.v_heads)
    parts = [random_weight("F16", n, E, seed) for seed, n in enumerate(rows)]
    output = random_weight("F32", E, a.inner, 4)
    norm, x = 1 + torch.randn(E) / 10, torch.randn(12, E)
    batch = step([(1, EXACT), (11, EXACT)], [-1, *(p + 1 if p >= 0 else -1 for p in TREE)])
    start = random_store(a, 2)
    for table, bound in ((ops, 0.0), (build_reference(CPU), 2e-3)):
        layer = DeltaLayer(
            norm=norm, eps=a.eps, mixed=table.prepare(parts), args=a, output=table.prepare([output])
        )
        one, parted = copy_of(start), copy_of(start)
        got = table.delta_layer(x.clone(), layer, one, batch)
        mixed = ops.norm_linear(x, norm, a.eps, ops.prepare(parts), batch.spans)
        between = ops.delta(mixed, parted, a, batch)
        want = ops.linear_add(between, ops.prepare([output]), x.clone(), batch.spans)
        assert one.tape is not None
        assert parted.tape is not None
        for mine, theirs in [
            (got, want),
            (one.state, parted.state),
            (one.conv, parted.conv),
            (one.tape.delta[1:], parted.tape.delta[1:]),
        ]:
            torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound)


def test_decays_at_the_ends_of_f32_stay_finite(ops: OpTable) -> None:
    a = replace(args(), a=-torch.tensor([0.0, 1e-6, 50.0, 1e4]))
    x = mixed(a, 40) * 30
    x[:, : a.channels] = 0
    got = decode(ops, a, x, random_store(a, 1))
    assert got.isfinite().all()


def test_a_wide_convolution_is_refused(ops: OpTable) -> None:
    a = args(W=17)
    with pytest.raises(UnsupportedError, match="17 tokens"):
        ops.delta(mixed(a, 1), store(a), a, step([(1, EXACT)]))
