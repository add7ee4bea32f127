"""delta: the chunked form against token by token, and what a step may touch."""

from dataclasses import replace

import pytest
import torch

from pydflash.kernels.ops import DeltaArgs, Paths, Recurrent, RowKind, Span, StepBatch
from pydflash.kernels.ref.delta import delta, delta_commit

Tensor = torch.Tensor


def args(Hk: int = 2, Hv: int = 4, Dk: int = 8, Dv: int = 8, W: int = 4) -> DeltaArgs:
    return DeltaArgs(
        k_heads=Hk,
        v_heads=Hv,
        k_dim=Dk,
        v_dim=Dv,
        conv=torch.randn(2 * Hk * Dk + Hv * Dv, W) / 2,
        a=-torch.rand(Hv) * 3,
        dt_bias=torch.randn(Hv),
        norm=1 + torch.randn(Dv) / 10,
        eps=1e-6,
    )


def store(a: DeltaArgs, slots: int = 2) -> Recurrent:
    return Recurrent(
        conv=torch.zeros(slots, a.conv.shape[1] - 1, a.channels),
        state=torch.zeros(slots, a.v_heads, a.k_dim, a.v_dim),
    )


def mixed(a: DeltaArgs, count: int) -> Tensor:
    return torch.randn(count, a.channels + a.inner + 2 * a.v_heads)


def one_row(count: int, base: int, kind: RowKind, slot: int = 0) -> StepBatch:
    """One row at positions base.., a chain if it is exact."""
    none = torch.zeros(count, dtype=torch.int32)
    return StepBatch(
        tokens=none,
        positions=torch.arange(base, base + count, dtype=torch.int32),
        row_of=none,
        kinds=(kind,),
        cu_q=(0, count),
        base=torch.tensor([base], dtype=torch.int32),
        page_table=none[:, None],
        write_slots=none,
        slots=torch.tensor([slot], dtype=torch.int32),
        ancestors=None,
        parents=None,
        logit_rows=none[:0].long(),
        spans=(Span(0, count, kind),),
        starts=torch.tensor([0, count], dtype=torch.int32),
    )


def by_token(a: DeltaArgs, x: Tensor) -> tuple[Tensor, Recurrent]:
    r = store(a)
    out = [delta(x[t : t + 1], r, a, one_row(1, t, RowKind.EXACT)) for t in range(len(x))]
    return torch.cat(out), r


def by_chunk(a: DeltaArgs, x: Tensor, chunk: int) -> tuple[Tensor, Recurrent]:
    r, out, at = store(a), [], 0
    while at < len(x):
        piece = x[at : at + chunk - at % chunk]
        out.append(delta(piece, r, a, one_row(len(piece), at, RowKind.PREFILL)))
        at += len(piece)
    return torch.cat(out), r


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("sizes", [(2, 4, 8, 8), (3, 3, 16, 4), (1, 4, 4, 16)])
def test_chunks_equal_token_by_token(sizes: tuple[int, ...], width: int) -> None:
    a = args(*sizes, W=width)
    x = mixed(a, 201)
    want, r = by_token(a, x)
    for chunk in (32, 64, 256):
        got, s = by_chunk(a, x, chunk)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(s.state, r.state, rtol=1e-4, atol=1e-5)
        assert torch.equal(s.conv, r.conv)


def test_the_grid_alone_decides_the_bits_of_a_prompt() -> None:
    a = args()
    x = mixed(a, 150)
    whole, r = by_chunk(a, x, 256)
    pieces, s = by_chunk(a, x, 32)
    assert torch.equal(whole, pieces)
    assert torch.equal(r.state, s.state)


@pytest.mark.slow
def test_chunks_stay_with_token_by_token_for_20000_tokens() -> None:
    """Decays near 1 let the state remember thousands of tokens; the error must not build up."""
    a = replace(args(), a=-torch.tensor([1e-5, 1e-3, 0.1, 2.0]))
    x = mixed(a, 20_000)
    want, r = by_token(a, x)
    got, s = by_chunk(a, x, 256)
    assert (got[-1000:] - want[-1000:]).abs().max() < 1e-4 * want.abs().max()
    assert (s.state - r.state).abs().max() < 1e-4 * r.state.abs().max()


def test_a_proposal_leaves_the_slot_and_its_commit_repeats_the_step() -> None:
    a = args()
    x = mixed(a, 10)
    want, r = by_token(a, x)
    s = store(a)
    for t in range(4):
        delta(x[t : t + 1], s, a, one_row(1, t, RowKind.EXACT, slot=1))
    before = s.state.clone(), s.conv.clone()
    got = delta(x[4:], s, a, one_row(6, 4, RowKind.EXACT, slot=1))
    assert torch.equal(s.state, before[0])
    assert torch.equal(s.conv, before[1])
    assert torch.equal(got, want[4:])
    ints = torch.arange(6, dtype=torch.int32)
    starts = torch.tensor([0, 6], dtype=torch.int32)
    slots = torch.tensor([1], dtype=torch.int32)
    delta_commit(s, Paths(slots=slots, nodes=ints, cu=(0, 6), starts=starts))
    assert torch.equal(s.state[1], r.state[0])
    assert torch.equal(s.conv[1], r.conv[0])
    assert not s.state[0].any(), "another sequence's slot"
