"""Commits: slots advance along accepted tokens by the operands on the tape, all layers in one launch."""

from collections.abc import Sequence

import triton
import triton.language as tl

from pydflash.kernels.ops import Paths, Recurrent
from pydflash.kernels.triton.addresses import tensor_at
from pydflash.kernels.triton.delta_math import update
from pydflash.kernels.triton.delta_tape import operand_table, tape_of

BLOCK_V = 16
AHEAD = 4
"""Tokens whose operands a program holds at once."""
BLOCK_C = 512


@triton.jit
def _advance_state(
    state_ptr,
    k_ptr,
    delta_ptr,
    decay_ptr,
    nodes_ptr,
    first,
    last,
    i_head,
    i_slice,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """state_ptr [HV, DK, DV] of the slot; the tape's k [T, HK, DK], delta [T, HV, DV], decay [T, HV]."""
    o_k = tl.arange(0, BLOCK_K)
    o_v = i_slice * BLOCK_V + tl.arange(0, BLOCK_V)
    is_both = (o_k < DK)[:, None] & (o_v < DV)[None, :]
    states = state_ptr + i_head * DK * DV + o_k[:, None] * DV + o_v[None, :]
    b_state = tl.load(states, mask=is_both, other=0.0)
    # Several tokens' operands are asked for at once: one after the other each would be waited for.
    rest = first + (last - first) // AHEAD * AHEAD
    for i in range(first, rest, AHEAD):
        tokens = ()
        for j in tl.static_range(AHEAD):
            token = tl.load(nodes_ptr + i + j).to(tl.int64)
            tokens += (
                _operands(k_ptr, delta_ptr, decay_ptr, token, i_head, o_k, o_v, HK, HV, DK, DV),
            )
        for j in tl.static_range(AHEAD):
            b_k, b_delta, decay = tokens[j]
            b_state = update(b_state, b_k[:, None], b_delta[None, :], decay)
    for i in range(rest, last):
        token = tl.load(nodes_ptr + i).to(tl.int64)
        b_k, b_delta, decay = _operands(
            k_ptr, delta_ptr, decay_ptr, token, i_head, o_k, o_v, HK, HV, DK, DV
        )
        b_state = update(b_state, b_k[:, None], b_delta[None, :], decay)
    tl.store(states, b_state, mask=is_both)


@triton.jit
def _operands(
    k_ptr, delta_ptr, decay_ptr, token, i_head, o_k, o_v,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """A token's k [BLOCK_K], delta [BLOCK_V] and decay."""
    b_k = tl.load(k_ptr + (token * HK + i_head % HK) * DK + o_k, mask=o_k < DK, other=0.0)
    b_delta = tl.load(delta_ptr + (token * HV + i_head) * DV + o_v, mask=o_v < DV, other=0.0)
    return b_k, b_delta, tl.load(decay_ptr + token * HV + i_head)


@triton.jit
def _advance_conv(
    conv_ptr,
    rows_ptr,
    nodes_ptr,
    first,
    last,
    i_block,
    C: tl.constexpr,
    W: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """conv_ptr [W - 1, C] of the slot becomes the last W - 1 of itself and the path's raw inputs."""
    o_c = i_block * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = o_c < C
    for j in tl.static_range(W - 1):  # a row takes a later one, or an input: never an earlier row
        place = last - (W - 1) + j
        if place >= first:
            token = tl.load(nodes_ptr + place).to(tl.int64)
            b_raw = tl.load(rows_ptr + token * C + o_c, mask=mask, other=0.0)
        else:
            b_raw = tl.load(conv_ptr + (j + last - first) * C + o_c, mask=mask, other=0.0)
        tl.debug_barrier()
        tl.store(conv_ptr + j * C + o_c, b_raw, mask=mask)
        tl.debug_barrier()


@triton.jit
def delta_commit_kernel(
    table_ptr,
    slots_ptr,
    nodes_ptr,
    starts_ptr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Grid (slices of all heads, then blocks of channels; paths; layers).

    table int64 [layers, 6]: addresses of conv, state and the tape's k, delta, decay, rows.
    """
    C: tl.constexpr = 2 * HK * DK + HV * DV
    SLICES: tl.constexpr = (DV + BLOCK_V - 1) // BLOCK_V
    i_part, i_path, i_layer = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last = tl.load(starts_ptr + i_path), tl.load(starts_ptr + i_path + 1)
    if first >= last:
        return
    slot = tl.load(slots_ptr + i_path).to(tl.int64)
    table_ptr += i_layer * 6
    if i_part < HV * SLICES:
        _advance_state(
            tensor_at(table_ptr + 1, tl.float32) + slot * HV * DK * DV,
            tensor_at(table_ptr + 2, tl.float32),
            tensor_at(table_ptr + 3, tl.float32),
            tensor_at(table_ptr + 4, tl.float32),
            nodes_ptr, first, last, i_part // SLICES, i_part % SLICES,
            HK, HV, DK, DV, BLOCK_K, BLOCK_V, AHEAD,
        )  # fmt: skip
    else:
        _advance_conv(
            tensor_at(table_ptr + 0, tl.float32) + slot * (W - 1) * C,
            tensor_at(table_ptr + 5, tl.float32),
            nodes_ptr, first, last, i_part - HV * SLICES, C, W, BLOCK_C,
        )  # fmt: skip


def delta_commit(recurrent: Recurrent, paths: Paths) -> None:
    """Advance each slot along its accepted tokens: `delta_commit_all` for one layer."""
    delta_commit_all([recurrent], paths)


def delta_commit_all(recurrents: Sequence[Recurrent], paths: Paths) -> None:
    """Advance the slots of layers of one shape, in one launch.

    Only the tensors of `paths` are read, so a graph may replay it with other paths; before its capture it
    has to have run once with the same tapes, which puts their addresses on the device.
    """
    HV, DK, DV = recurrents[0].state.shape[1:]
    HK = tape_of(recurrents[0]).k.shape[1]
    width = recurrents[0].conv.shape[1] + 1
    block_v = min(BLOCK_V, triton.next_power_of_2(DV))
    parts = HV * triton.cdiv(DV, block_v) + triton.cdiv(recurrents[0].conv.shape[2], BLOCK_C)
    delta_commit_kernel[(parts, paths.slots.shape[0], len(recurrents))](
        operand_table(recurrents),
        paths.slots,
        paths.nodes,
        paths.starts,
        HK=HK,
        HV=HV,
        DK=DK,
        DV=DV,
        W=width,
        BLOCK_K=triton.next_power_of_2(DK),
        BLOCK_V=block_v,
        BLOCK_C=BLOCK_C,
        AHEAD=AHEAD,
        num_warps=1,
    )
