"""Triton's delta: against the reference, and bit for bit against itself in other company."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from pydflash.kernels.ops import DeltaArgs, Paths, Recurrent, RowKind, Span, StepBatch
from pydflash.kernels.ref.delta import delta as reference
from tests.backends import large
from tests.kernels.test_ref_delta import args as random_args

Tensor = torch.Tensor

delta_room = pytest.importorskip("pydflash.kernels.triton.delta", reason="pip install triton")
delta, delta_commit = delta_room.delta, delta_room.delta_commit
delta_commit_all, reserve = delta_room.delta_commit_all, delta_room.reserve

EXACT, PREFILL = RowKind.EXACT, RowKind.PREFILL
TREE = (-1, 0, 0, 1, 1, 2, 3, 3, 0, 8, 9)
SIZES = [
    (2, 4, 16, 16, 4),
    (1, 2, 32, 24, 3),
    (3, 3, 64, 8, 2),
    (1, 1, 128, 40, 4),
    (1, 3, 24, 4, 2),
    (1, 2, 8, 8, 4),
]
REAL = (16, 48, 128, 128, 4)


def sizes_on(device: torch.device, small: tuple[int, ...]) -> tuple[int, ...]:
    """A GPU has time for the shape that matters."""
    return REAL if large(device) else small


def args_on(device: torch.device, sizes: tuple[int, ...]) -> DeltaArgs:
    a = random_args(*sizes)
    moved = {n: getattr(a, n).to(device) for n in ("conv", "a", "dt_bias", "norm")}
    return replace(a, **moved)


def mixed(a: DeltaArgs, count: int) -> Tensor:
    return torch.randn(count, a.channels + a.inner + 2 * a.v_heads, device=a.conv.device)


def store(a: DeltaArgs, slots: int) -> Recurrent:
    like = a.conv
    return Recurrent(
        conv=torch.randn(slots, like.shape[1] - 1, a.channels, device=like.device),
        state=torch.randn(slots, a.v_heads, a.k_dim, a.v_dim, device=like.device),
    )


def copy_of(r: Recurrent, slot: int | None = None, *, to: str | None = None) -> Recurrent:
    own = slice(None) if slot is None else slice(slot, slot + 1)
    return Recurrent(conv=r.conv[own].clone().to(to), state=r.state[own].clone().to(to))


def step(
    device: torch.device,
    rows: Sequence[tuple[int, RowKind]],
    parents: Sequence[int] | None = None,
    base: Sequence[int] | None = None,
) -> StepBatch:
    """Row r of (tokens, kind) in slot r; `parents` by token in the step, else chains."""

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    cu = [0]
    for count, _ in rows:
        cu.append(cu[-1] + count)
    none = torch.zeros(cu[-1], dtype=torch.int32, device=device)
    exact = sum(n for n, kind in rows if kind is EXACT)
    spans = [Span(0, exact, EXACT)] if exact else []
    spans += [Span(cu[i], cu[i + 1], k) for i, (_, k) in enumerate(rows) if k is PREFILL]
    return StepBatch(
        tokens=none,
        positions=none,
        row_of=ints([r for r, (n, _) in enumerate(rows) for _ in range(n)]),
        kinds=tuple(kind for _, kind in rows),
        cu_q=tuple(cu),
        base=ints(base or [0] * len(rows)),
        page_table=none[:, None],
        write_slots=none,
        slots=ints(list(range(len(rows)))),
        ancestors=None,
        parents=None if parents is None else ints(parents),
        logit_rows=none[:0].long(),
        spans=tuple(spans),
        starts=ints(cu),
    )


def on_cpu(batch: StepBatch, a: DeltaArgs) -> tuple[StepBatch, DeltaArgs]:
    def moved(thing: object, *names: str) -> dict[str, Tensor]:
        return {n: t.cpu() for n in names if (t := getattr(thing, n)) is not None}

    names = ("positions", "row_of", "base", "slots", "parents", "starts")
    return replace(batch, **moved(batch, *names)), replace(
        a, **moved(a, "conv", "a", "dt_bias", "norm")
    )


def decode(a: DeltaArgs, x: Tensor, r: Recurrent) -> Tensor:
    """One token at a time in slot 0."""
    one = step(x.device, [(1, EXACT)])
    return torch.cat([delta(x[t : t + 1], r, a, one) for t in range(len(x))])


def paths(device: torch.device, own: Sequence[tuple[int, Sequence[int]]]) -> Paths:
    """Of (slot, tokens)."""
    cu = [0]
    for _, nodes in own:
        cu.append(cu[-1] + len(nodes))
    slots, nodes = [s for s, _ in own], [n for _, ns in own for n in ns]

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return Paths(slots=ints(slots), nodes=ints(nodes), cu=tuple(cu), starts=ints(cu))


def path_to(node: int, parents: Sequence[int] = TREE) -> list[int]:
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def assert_same(mine: Recurrent, theirs: Recurrent) -> None:
    assert torch.equal(mine.state, theirs.state)
    assert torch.equal(mine.conv, theirs.conv)


@pytest.mark.parametrize("sizes", SIZES)
def test_exact_rows_against_the_reference(device: torch.device, sizes: tuple[int, ...]) -> None:
    a = args_on(device, sizes)
    rows = [(1, EXACT), (len(TREE), EXACT), (1, EXACT)]
    batch = step(device, rows, [-1, *(p + 1 if p >= 0 else -1 for p in TREE), -1])
    mine, x = store(a, 3), mixed(a, 13)
    theirs = copy_of(mine, to="cpu")
    got = delta(x, mine, a, batch)
    plain, fixed = on_cpu(batch, a)
    want = reference(x.cpu(), theirs, fixed, plain)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.state.cpu(), theirs.state, rtol=1e-4, atol=1e-5)
    assert torch.equal(mine.conv.cpu(), theirs.conv)
    assert mine.tape is not None
    assert theirs.tape is not None
    for name in ("k", "delta", "decay", "rows"):
        taped = getattr(mine.tape, name).cpu(), getattr(theirs.tape, name)
        assert len(taped[0]) == 13
        torch.testing.assert_close(taped[0][1:12], taped[1][1:12], rtol=1e-4, atol=1e-5)


def test_a_node_is_the_end_of_its_chain_and_commits_as_it(device: torch.device) -> None:
    a = args_on(device, sizes_on(device, (1, 2, 16, 24, 4)))
    x, start = mixed(a, len(TREE)), store(a, 1)
    r = copy_of(start)
    got = delta(x, r, a, step(device, [(len(TREE), EXACT)], TREE))
    assert_same(r, start)
    assert not got.isnan().any()
    for node in (4, 7, 10):
        path, plain, taken = path_to(node), copy_of(start), copy_of(start)
        assert torch.equal(got[node], decode(a, x[path], plain)[-1])
        taken.tape = r.tape
        delta_commit(taken, paths(device, [(0, path)]))
        assert_same(taken, plain)
        chain = copy_of(start)
        along = delta(x[path], chain, a, step(device, [(len(path), EXACT)]))
        assert torch.equal(got[node], along[-1])


def test_any_tree_in_any_company(device: torch.device) -> None:
    """Rows of a step, some empty, against each alone; the last row holds the padding, whose parents are
    anything. Several roots, deep and wide shapes; one commit for two layers and all paths."""
    dice = torch.Generator().manual_seed(3)
    sizes = sizes_on(device, (1, 2, 16, 4, 3))
    layers = [(args_on(device, sizes), store(args_on(device, sizes), 6)) for _ in range(2)]
    for _ in range(20 if large(device) else 1):
        counts = [1, *torch.randint(3, 7, (2,), generator=dice).tolist(), 0, 0, 3]
        own = [
            [int(torch.randint(-1, i, (1,), generator=dice)) if i else -1 for i in range(n)]
            for n in counts
        ]
        cu = [sum(counts[:i]) for i in range(7)]
        parents = [p + cu[i] if p >= 0 else -1 for i, ps in enumerate(own) for p in ps]
        parents[-3:] = [10**6, -7, 0]
        batch = step(device, [(n, EXACT) for n in counts], parents)
        taken = [(i, path_to(counts[i] - 1, own[i])) for i in (1, 2)]
        rows = []
        for a, start in layers:
            x, r = mixed(a, cu[-1]), copy_of(start)
            got = delta(x, r, a, batch)
            assert not got.isnan().any()
            singles = [copy_of(start, i) for i in range(3)]
            for i, single in enumerate(singles):
                alone = step(device, [(counts[i], EXACT)], own[i])
                assert torch.equal(
                    got[cu[i] : cu[i + 1]], delta(x[cu[i] : cu[i + 1]], single, a, alone)
                )
            rows.append((r, singles))
        where = [(i, [n + cu[i] for n in nodes]) for i, nodes in taken]
        delta_commit_all([r for r, _ in rows], paths(device, [*where, (5, [])]))
        for r, singles in rows:
            for i, nodes in taken:
                delta_commit(singles[i], paths(device, [(0, nodes)]))
            for i, single in enumerate(singles):
                assert_same(copy_of(r, i), single)


def test_long_rows_are_walked_whole(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """More nodes than one block of places holds."""
    monkeypatch.setattr(delta_room, "BLOCK_NODES", 8)
    a = args_on(device, (1, 1, 16, 4, 2))
    parents = [-1, *(0 if i % 2 else i - 1 for i in range(1, 20))]
    x, start = mixed(a, 20), store(a, 1)
    got = delta(x, copy_of(start), a, step(device, [(20, EXACT)], parents))
    for node in (1, 12, 19):
        path = path_to(node, parents)
        assert torch.equal(got[node], decode(a, x[path], copy_of(start))[-1])


def test_a_tape_stays_where_it_is(device: torch.device) -> None:
    a = args_on(device, (1, 1, 16, 4, 2))
    r = store(a, 2)
    reserve(r, a, 9)
    where = []
    for count in (3, 9, 3):
        delta(mixed(a, count), r, a, step(device, [(count, EXACT)]))
        assert r.tape is not None
        assert len(r.tape.k) == count
        where.append((r.tape.k.data_ptr(), r.tape.rows.data_ptr()))
        tape, r.tape = r.tape, None
    assert len(set(where)) == 1
    r.tape = tape
    before = r.state.clone()
    delta_commit(r, paths(device, [(1, [0, 1])]))
    assert torch.equal(r.state[0], before[0])
    assert not torch.equal(r.state[1], before[1])


def test_results_in_half_precision_are_rounded_once(device: torch.device) -> None:
    a = args_on(device, (1, 1, 16, 4, 2))
    x, start = mixed(a, 5), store(a, 1)
    batch = step(device, [(5, EXACT)])
    full = delta(x, copy_of(start), a, batch)
    half = delta(x, copy_of(start), a, batch, out_dtype=torch.float16)
    assert torch.equal(half, full.half())


def test_decays_at_the_ends_of_f32_stay_finite(device: torch.device) -> None:
    a = args_on(device, (2, 4, 16, 4, 2))
    a = replace(a, a=-torch.tensor([0.0, 1e-6, 50.0, 1e4], device=device))
    x = mixed(a, 6) * 30
    x[:, : a.channels] = 0
    assert decode(a, x, store(a, 1)).isfinite().all()


@pytest.mark.parametrize("sizes", [(1, 2, 16, 8, 4), (1, 1, 24, 40, 2)])
def test_prompts_beside_exact_rows_against_the_reference(
    device: torch.device, sizes: tuple[int, ...]
) -> None:
    a = args_on(device, sizes_on(device, sizes))
    rows = [(1, EXACT), (3, EXACT), (45, PREFILL), (2, PREFILL)]
    batch = step(device, rows, base=[0, 0, 37, 0])
    mine, x = store(a, 4), mixed(a, 51)
    theirs = copy_of(mine, to="cpu")
    got = delta(x, mine, a, batch)
    plain, fixed = on_cpu(batch, a)
    want = reference(x.cpu(), theirs, fixed, plain)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.state.cpu(), theirs.state, rtol=1e-4, atol=1e-4)
    assert torch.equal(mine.conv.cpu(), theirs.conv)
    assert mine.tape is not None
    assert len(mine.tape.k) == 4


def test_the_grid_alone_decides_the_bits_of_a_prompt(device: torch.device) -> None:
    a = args_on(device, sizes_on(device, (1, 1, 16, 16, 4)))
    x, start = mixed(a, 66), store(a, 1)
    whole, r = (s := copy_of(start)), copy_of(start)
    want = delta(x, whole, a, step(device, [(66, PREFILL)]))
    got = [
        delta(part, r, a, step(device, [(len(part), PREFILL)], base=[at]))
        for at, part in ((0, x[:32]), (32, x[32:]))
    ]
    assert torch.equal(torch.cat(got), want)
    assert_same(r, s)
