"""Gated DeltaNet between its projections, for GPUs: launches of the kernels beside this file.

Exact rows take three: inputs, walk, norm. Whatever a graph may replay with other contents is read on the
device; prefill rows, which no graph holds, are launched row by row. See `delta_tape` for where tapes live.
"""

import torch
import triton

from pydflash.kernels.ops import DeltaArgs, Recurrent, RowKind, StepBatch
from pydflash.kernels.triton.delta_commit import delta_commit, delta_commit_all
from pydflash.kernels.triton.delta_inputs import delta_inputs_kernel
from pydflash.kernels.triton.delta_prefill import prefill
from pydflash.kernels.triton.delta_tape import reserve
from pydflash.kernels.triton.delta_walk import delta_norm_kernel, delta_walk_kernel
from pydflash.kernels.triton.sums import Sums

Tensor = torch.Tensor

__all__ = ["delta", "delta_commit", "delta_commit_all", "reserve"]

BLOCK_V = 8
"""Columns of a state in one warp: with Dk = 128, 32 registers a thread, and as many again for a copy."""
LANES = 4
"""Lanes that share a column. Part of the reduction order."""
BLOCK_NODES = 64


def delta(
    mixed: Tensor | Sums,
    recurrent: Recurrent,
    args: DeltaArgs,
    batch: StepBatch,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """mixed [T, C + Hv * Dv + 2 Hv] -> out_dtype [T, Hv * Dv]. Advances slots or fills the tape. Of a step of
    exact rows alone, it may be in partial sums. a, dt_bias and norm are contiguous f32, the
    convolution's taps f32 of any strides."""
    mixed = Sums.of(mixed)
    T, device = mixed.rows, mixed.parts.device
    walked = torch.empty((T, args.v_heads, args.v_dim), dtype=torch.float32, device=device)
    out = torch.empty((T, args.inner), dtype=out_dtype, device=device)
    exact, rows = _exact(batch, T)
    recurrent.tape = None
    if exact:
        _exact_rows(mixed, recurrent, args, batch, exact, rows, walked)
    for row in range(rows, len(batch.kinds) if exact < T else rows):
        start, stop = batch.cu_q[row], batch.cu_q[row + 1]
        if stop > start:
            own = mixed.whole[start:stop], recurrent, args, row, batch.slots, batch.base
            prefill(*own, walked[start:stop])
    _norm(walked, mixed, args, out)
    return out


def _exact(batch: StepBatch, tokens: int) -> tuple[int, int]:
    """The step's exact tokens and rows: those of its shape, unless it has prefill rows."""
    if all(span.kind is RowKind.EXACT for span in batch.spans):
        return tokens, batch.slots.shape[0]
    exact = sum(kind is RowKind.EXACT for kind in batch.kinds)
    return batch.cu_q[exact], exact


def _exact_rows(
    mixed: Sums,
    recurrent: Recurrent,
    args: DeltaArgs,
    batch: StepBatch,
    tokens: int,
    rows: int,
    walked: Tensor,
) -> None:
    """Fill walked[:tokens]: the recurrence's results before their norm."""
    HK, HV, DK, DV = args.k_heads, args.v_heads, args.k_dim, args.v_dim
    tape = recurrent.tape = reserve(recurrent, args, tokens).first(tokens)
    has_parents = batch.parents is not None
    q, v = torch.empty_like(tape.k), torch.empty_like(tape.delta)
    qk = tape.k.new_empty(tokens, HK)
    beta = torch.empty_like(tape.decay)
    places = batch.starts.new_empty(2, tokens)
    parents = batch.starts if batch.parents is None else batch.parents
    block_k, block_v = triton.next_power_of_2(DK), triton.next_power_of_2(DV)
    delta_inputs_kernel[(tokens, HK + HV + has_parents)](
        mixed.parts,
        mixed.counts,
        mixed.stride,
        mixed.apart,
        recurrent.conv,
        args.conv,
        *args.conv.stride(),
        args.a,
        args.dt_bias,
        batch.slots,
        batch.row_of,
        batch.starts,
        parents,
        q,
        tape.k,
        qk,
        v,
        tape.decay,
        beta,
        tape.rows,
        places[0],
        places[1],
        args.eps,
        DK**-0.5,
        HK=HK,
        HV=HV,
        DK=DK,
        DV=DV,
        W=args.conv.shape[1],
        SLOTS=mixed.slots,
        BLOCK_K=block_k,
        BLOCK_V=block_v,
        BLOCK_NODES=BLOCK_NODES,
        HAS_PARENTS=has_parents,
        num_warps=1,
    )
    slices = triton.cdiv(DV, min(BLOCK_V, block_v))
    delta_walk_kernel[(slices, HV, rows)](
        recurrent.state,
        batch.slots,
        batch.starts,
        parents,
        places[0],
        places[1],
        q,
        tape.k,
        qk,
        v,
        tape.decay,
        beta,
        tape.delta,
        walked,
        HK=HK,
        HV=HV,
        DK=DK,
        DV=DV,
        BLOCK_K=max(block_k, 4 * LANES),  # a lane takes four rows at a time
        BLOCK_V=min(BLOCK_V, block_v),
        LANES=LANES,
        HAS_PARENTS=has_parents,
        num_warps=1,
    )


def _norm(walked: Tensor, mixed: Sums, args: DeltaArgs, out: Tensor) -> None:
    """walked f32 [T, Hv, Dv], z in mixed -> out [T, Hv * Dv]."""
    delta_norm_kernel[(len(walked), args.v_heads)](
        walked,
        mixed.parts,
        mixed.counts,
        mixed.stride,
        mixed.apart,
        args.norm,
        out,
        args.eps,
        C=args.channels,
        SLOTS=mixed.slots,
        HV=args.v_heads,
        DV=args.v_dim,
        BLOCK_V=triton.next_power_of_2(args.v_dim),
        num_warps=1,
    )
