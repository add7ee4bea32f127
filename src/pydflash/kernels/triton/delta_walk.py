"""The recurrence of exact rows: a program walks one row with a slice of one head's state in registers.

A row of several tokens is walked depth first, each node's leaves before its other children, so nearly all
nodes go on from the state of the last node or of its parent. What the walk comes back to later is kept in
registers, one state at a time. Else a node starts again from the slot, along its ancestors' operands on the
tape: the updates that made the parent's state, so its bits.

The slice [Dk, BLOCK_V] belongs to one warp, as [BLOCK_V, LANES, OUTER, INNER]: BLOCK_V times LANES lanes, in
each of them OUTER times INNER rows of one column, so that sums over Dk hardly leave a lane.
"""

import triton
import triton.language as tl

from pydflash.kernels.triton.delta_inputs import parent_of
from pydflash.kernels.triton.delta_math import silu, update
from pydflash.kernels.triton.pointwise import stored, sum_parts


@triton.jit
def _operand(x_ptr, o_k, DK: tl.constexpr):
    """q or k of one token and head: [LANES, OUTER, INNER]."""
    return tl.load(x_ptr + o_k, mask=o_k < DK, other=0.0)


@triton.jit
def _arrived(b_state, slot):
    """b_state, waited for here. A GPU tells loads in flight apart by six counters only: a state still on its
    way when the walk goes on shares one with the operands fetched ahead, and every node waits for both."""
    return b_state * tl.where(slot >= 0, 1.0, 0.0)


@triton.jit
def _summed(b_state, b_x):
    """sum over Dk of state times x -> [BLOCK_V, 1]."""
    return tl.sum(tl.sum(tl.sum(b_state * b_x[None, :, :, :], 2), 2), 1)[:, None]


@triton.jit
def _updated(b_state, b_k, b_delta, decay):
    """b_delta [BLOCK_V, LANES], alike in all lanes."""
    return update(b_state, b_k[None, :, :, :], b_delta[:, :, None, None], decay)


@triton.jit
def _restored(
    b_state,
    i_place,
    start,
    i_head,
    order_ptr,
    until_ptr,
    k_ptr,
    decay_ptr,
    delta_ptr,
    o_k,
    o_v,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
):
    """From the slot's state to that of the parent of the node at i_place: subtrees before it that end
    before it are passed over, and what remains are its ancestors, in order."""
    place = start
    while place < i_place:
        until = tl.load(until_ptr + place) // 2
        if until > i_place:
            token = tl.load(order_ptr + place).to(tl.int64)
            b_k = _operand(k_ptr + (token * HK + i_head % HK) * DK, o_k, DK)
            b_delta = tl.load(
                delta_ptr + (token * HV + i_head) * DV + o_v, mask=o_v < DV, other=0.0
            )
            b_state = _updated(b_state, b_k, b_delta, tl.load(decay_ptr + token * HV + i_head))
            place += 1
        else:
            place = until
    return b_state


@triton.jit
def delta_walk_kernel(
    state_ptr,
    slots_ptr,
    starts_ptr,
    parents_ptr,
    order_ptr,
    until_ptr,
    q_ptr,
    k_ptr,
    qk_ptr,
    v_ptr,
    decay_ptr,
    beta_ptr,
    delta_ptr,
    out_ptr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    LANES: tl.constexpr,
    HAS_PARENTS: tl.constexpr,
):
    """Grid (slices of Dv, HV, rows). Writes delta and out [T, HV, DV]; a row of one token its slot too."""
    INNER: tl.constexpr = 4
    OUTER: tl.constexpr = BLOCK_K // (LANES * INNER)
    i_slice, i_head, i_row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, stop = tl.load(starts_ptr + i_row), tl.load(starts_ptr + i_row + 1)
    slot = tl.load(slots_ptr + i_row).to(tl.int64)
    if start >= stop:
        return
    # Rows of a lane lie side by side. Columns do too, but a lane is to take one: nothing is said of that.
    o_k = (
        tl.arange(0, LANES)[:, None, None] * (OUTER * INNER)
        + tl.arange(0, OUTER)[None, :, None] * INNER
        + tl.arange(0, INNER)[None, None, :]
    )
    o_column = tl.max_contiguous(i_slice * BLOCK_V + tl.arange(0, BLOCK_V), 1)
    o_lane = tl.arange(0, LANES)[None, :]
    o_v = o_lane * 0 + o_column[:, None]
    is_v = o_v < DV
    o_state = o_k[None, :, :, :] * DV + o_column[:, None, None, None]
    is_state = (o_k < DK)[None, :, :, :] & (o_column < DV)[:, None, None, None]
    states = state_ptr + (slot * HV + i_head) * DK * DV + o_state
    k_head = i_head % HK
    b_state = _arrived(tl.load(states, mask=is_state, other=0.0), slot)
    b_kept, kept = b_state, start * 0 - 2  # a state that is needed again, and whose it is
    above = start * 0 - 1  # b_state is the state after this token: the slot's for -1
    next_token, next_parent = start, above
    if HAS_PARENTS:
        next_token, next_until = tl.load(order_ptr + start), tl.load(until_ptr + start)
        after_next = tl.load(order_ptr + tl.minimum(start + 1, stop - 1))
    wide = next_token.to(tl.int64)
    b_next_q = _operand(q_ptr + (wide * HK + k_head) * DK, o_k, DK)
    b_next_k = _operand(k_ptr + (wide * HK + k_head) * DK, o_k, DK)
    b_next_v = tl.load(v_ptr + (wide * HV + i_head) * DV + o_v, mask=is_v, other=0.0)
    next_qk = tl.load(qk_ptr + wide * HK + k_head)
    next_decay = tl.load(decay_ptr + wide * HV + i_head)
    next_beta = tl.load(beta_ptr + wide * HV + i_head)
    for i_place in range(start, stop):
        token, b_q, b_k, b_v = wide, b_next_q, b_next_k, b_next_v
        qk, decay, beta, parent = next_qk, next_decay, next_beta, next_parent
        if HAS_PARENTS:
            until, next_until = next_until, tl.load(until_ptr + tl.minimum(i_place + 1, stop - 1))
            next_parent = parent_of(parents_ptr, after_next, start, True)
            wide = after_next.to(tl.int64)
            after_next = tl.load(order_ptr + tl.minimum(i_place + 2, stop - 1))
        else:
            wide = tl.minimum(i_place + 1, stop - 1).to(tl.int64)
        b_next_q = _operand(q_ptr + (wide * HK + k_head) * DK, o_k, DK)
        b_next_k = _operand(k_ptr + (wide * HK + k_head) * DK, o_k, DK)
        b_next_v = tl.load(v_ptr + (wide * HV + i_head) * DV + o_v, mask=is_v, other=0.0)
        next_qk = tl.load(qk_ptr + wide * HK + k_head)
        next_decay = tl.load(decay_ptr + wide * HV + i_head)
        next_beta = tl.load(beta_ptr + wide * HV + i_head)
        if HAS_PARENTS:  # noqa: SIM102 - one is known when this is compiled
            if parent != above:
                if parent == kept:
                    b_state = b_kept
                else:
                    tl.debug_barrier()  # deltas that other threads of this program stored
                    b_state = _arrived(tl.load(states, mask=is_state, other=0.0), slot)
                    b_state = _restored(
                        b_state, i_place, start, i_head, order_ptr, until_ptr, k_ptr, decay_ptr,
                        delta_ptr, o_k, o_v, HK, HV, DK, DV,
                    )  # fmt: skip
                above = parent
        # q . (decay S + k delta) = decay (q . S) + (q . k) delta: both sums read the state before the token
        b_delta = tl.fma(_summed(b_state, b_k), -decay, b_v) * beta
        b_out = tl.fma(b_delta, qk, _summed(b_state, b_q) * decay)
        o_out = (token * HV + i_head) * DV + o_v
        outs = tl.where(o_lane == 0, delta_ptr + o_out, out_ptr + o_out)
        tl.store(outs, tl.where(o_lane == 0, b_delta, b_out), mask=is_v & (o_lane < 2))
        if HAS_PARENTS:
            if (next_parent == token) | (
                stop - start == 1
            ):  # else a sibling is next, or one's sibling
                if until % 2 == 1:
                    b_kept, kept = b_state, above
                b_state = _updated(b_state, b_k, b_delta, decay)
                above = token.to(tl.int32)
        else:
            b_state = _updated(b_state, b_k, b_delta, decay)
    if stop - start == 1:
        tl.store(states, b_state, mask=is_state)


@triton.jit(do_not_specialize=["apart"])
def delta_norm_kernel(
    walked_ptr,
    mixed_ptr,
    counts_ptr,
    stride_mixed,
    apart,
    norm_ptr,
    out_ptr,
    eps,
    C: tl.constexpr,
    SLOTS: tl.constexpr,
    HV: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """RMS norm of each value head of walked f32 [T, HV, DV], times silu(z), z in SLOTS partial sums.
    Grid (T, HV)."""
    i_token, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_v = tl.arange(0, BLOCK_V)
    mask = o_v < DV
    o_x = i_head * DV + o_v
    b_x = tl.load(walked_ptr + i_token * HV * DV + o_x, mask=mask, other=0.0)
    o_z = i_token * stride_mixed + C + o_x
    b_z = sum_parts(mixed_ptr, counts_ptr, C + o_x, o_z, apart, SLOTS, mask).to(tl.float32)
    b_norm = tl.load(norm_ptr + o_v, mask=mask, other=0.0)
    b_y = b_x * tl.rsqrt(tl.sum(b_x * b_x, 0) / DV + eps) * b_norm * silu(b_z)
    tl.store(out_ptr + i_token * HV * DV + o_x, stored(b_y, out_ptr), mask=mask)
