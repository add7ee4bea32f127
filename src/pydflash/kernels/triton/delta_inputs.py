"""What exact tokens bring to the recurrence: convolution, silu, l2 norms, gates, and the walk's order.

A program takes one token and one head (a key head's q and k, or a value head's v and gates), or the token's
place in the walk. Only a row of one token writes its slot's convolution state, and each of its channels is
read and written by one program.
"""

import triton
import triton.language as tl

from pydflash.kernels.triton.delta_math import exp_near_one, sigmoid, silu, softplus


@triton.jit
def parent_of(parents_ptr, i_token, start, HAS_PARENTS: tl.constexpr):
    """The parent's token or -1. Anything that is no earlier token of the row (padding) counts as -1."""
    if HAS_PARENTS:
        parent = tl.load(parents_ptr + i_token)
        parent = tl.where(parent < i_token, parent, -1)
    else:
        parent = i_token - 1
    return tl.where(parent >= start, parent, -1)


@triton.jit
def _convolved(
    mixed_ptr,
    stride_mixed,
    conv_ptr,
    taps_ptr,
    rows_ptr,
    parents_ptr,
    i_token,
    start,
    is_single,
    slot,
    o_c,
    mask,
    C: tl.constexpr,
    W: tl.constexpr,
    HAS_PARENTS: tl.constexpr,
):
    """silu of the convolution at channels o_c, through the chain of parents; keeps the raw inputs."""
    b_raw = tl.load(mixed_ptr + i_token.to(tl.int64) * stride_mixed + o_c, mask=mask, other=0.0)
    b_raw = b_raw.to(tl.float32)
    b_sum = b_raw * tl.load(taps_ptr + o_c * W + W - 1, mask=mask, other=0.0)
    conv_ptr += slot * (W - 1) * C
    ancestor = i_token
    missing = 0  # taps beyond the row's first token
    for j in tl.static_range(W - 1):
        if missing == 0:
            ancestor = parent_of(parents_ptr, ancestor, start, HAS_PARENTS)
        missing += tl.where(ancestor < 0, 1, 0)
        above = tl.maximum(ancestor, 0).to(tl.int64)
        held = W - 1 - tl.maximum(missing, 1)
        b_step = tl.load(
            mixed_ptr + above * stride_mixed + o_c, mask=mask & (missing == 0), other=0.0
        )
        b_held = tl.load(conv_ptr + held * C + o_c, mask=mask & (missing > 0), other=0.0)
        b_tap = tl.load(taps_ptr + o_c * W + W - 2 - j, mask=mask, other=0.0)
        b_sum = tl.fma(tl.where(missing == 0, b_step.to(tl.float32), b_held), b_tap, b_sum)
    if is_single:
        tl.debug_barrier()  # every thread has read what others overwrite
        for j in tl.static_range(W - 2):
            b_next = tl.load(conv_ptr + (j + 1) * C + o_c, mask=mask, other=0.0)
            tl.store(conv_ptr + j * C + o_c, b_next, mask=mask)
            tl.debug_barrier()
        tl.store(conv_ptr + (W - 2) * C + o_c, b_raw, mask=mask)
    else:
        tl.store(rows_ptr + i_token.to(tl.int64) * C + o_c, b_raw, mask=mask)
    return silu(b_sum)


@triton.jit
def _place(order_ptr, until_ptr, parents_ptr, i_token, start, stop, BLOCK: tl.constexpr):
    """The token's place when its row is walked depth first, and the place after its last descendant.

    Tokens u of the row are compared with it at the children of their last common ancestor: parents come
    before children, so the later of two nodes is the one to go up.
    """
    before = 0
    under = 0
    for first in range(start, stop, BLOCK):
        o_u = first + tl.arange(0, BLOCK)
        is_node = o_u < stop
        b_mine = tl.where(is_node, i_token, -1)
        b_theirs = tl.where(is_node, o_u, -1)
        b_my_child = tl.full((BLOCK,), -1, tl.int32)
        b_their_child = tl.full((BLOCK,), -1, tl.int32)
        while tl.max((b_mine != b_theirs).to(tl.int32), 0) > 0:
            mine_up, theirs_up = b_mine > b_theirs, b_theirs > b_mine
            b_from = tl.where(mine_up, b_mine, b_theirs)
            b_up = tl.load(parents_ptr + b_from, mask=mine_up | theirs_up, other=-1)
            b_up = tl.where((b_up >= start) & (b_up < b_from), b_up, -1)
            b_my_child = tl.where(mine_up, b_mine, b_my_child)
            b_their_child = tl.where(theirs_up, b_theirs, b_their_child)
            b_mine = tl.where(mine_up, b_up, b_mine)
            b_theirs = tl.where(theirs_up, b_up, b_theirs)
        b_above = (b_their_child < 0) & (b_my_child >= 0)  # u is an ancestor
        b_apart = (b_their_child >= 0) & (b_my_child >= 0) & (b_their_child < b_my_child)
        before += tl.sum((is_node & (b_above | b_apart)).to(tl.int32), 0)
        under += tl.sum((is_node & (b_my_child < 0)).to(tl.int32), 0)
    tl.store(order_ptr + start + before, i_token)
    tl.store(until_ptr + start + before, start + before + under)


@triton.jit
def delta_inputs_kernel(
    mixed_ptr,
    stride_mixed,
    conv_ptr,
    taps_ptr,
    a_ptr,
    dt_bias_ptr,
    slots_ptr,
    row_of_ptr,
    starts_ptr,
    parents_ptr,
    q_ptr,
    k_ptr,
    qk_ptr,
    v_ptr,
    decay_ptr,
    beta_ptr,
    rows_ptr,
    order_ptr,
    until_ptr,
    eps,
    scale,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_NODES: tl.constexpr,
    HAS_PARENTS: tl.constexpr,
):
    """Grid (T, HK + HV + HAS_PARENTS). q [T, HK, DK] scaled, k [T, HK, DK], their products qk [T, HK],
    v [T, HV, DV], decay and beta [T, HV], rows [T, C], order and until [T]."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    i_token = tl.program_id(0)
    i_head = tl.num_programs(1) - 1 - tl.program_id(1)  # a place takes longest: it goes first
    i_row = tl.load(row_of_ptr + i_token)
    start, stop = tl.load(starts_ptr + i_row), tl.load(starts_ptr + i_row + 1)
    is_single = stop - start == 1
    slot = tl.load(slots_ptr + i_row).to(tl.int64)
    wide = i_token.to(tl.int64)
    if i_head < HK:
        o_k = tl.arange(0, BLOCK_K)
        mask = o_k < DK
        o_c = i_head * DK + o_k
        b_q = _convolved(
            mixed_ptr, stride_mixed, conv_ptr, taps_ptr, rows_ptr, parents_ptr, i_token, start,
            is_single, slot, o_c, mask, C, W, HAS_PARENTS,
        )  # fmt: skip
        b_k = _convolved(
            mixed_ptr, stride_mixed, conv_ptr, taps_ptr, rows_ptr, parents_ptr, i_token, start,
            is_single, slot, HK * DK + o_c, mask, C, W, HAS_PARENTS,
        )  # fmt: skip
        b_q = b_q / tl.maximum(tl.sqrt(tl.sum(b_q * b_q, 0)), eps) * scale
        b_k = b_k / tl.maximum(tl.sqrt(tl.sum(b_k * b_k, 0)), eps)
        tl.store(q_ptr + wide * HK * DK + o_c, b_q, mask=mask)
        tl.store(k_ptr + wide * HK * DK + o_c, b_k, mask=mask)
        tl.store(qk_ptr + wide * HK + i_head, tl.sum(b_q * b_k, 0))
    elif i_head < HK + HV:
        head = i_head - HK
        o_v = tl.arange(0, BLOCK_V)
        mask = o_v < DV
        o_c = head * DV + o_v
        b_v = _convolved(
            mixed_ptr, stride_mixed, conv_ptr, taps_ptr, rows_ptr, parents_ptr, i_token, start,
            is_single, slot, 2 * HK * DK + o_c, mask, C, W, HAS_PARENTS,
        )  # fmt: skip
        tl.store(v_ptr + wide * HV * DV + o_c, b_v, mask=mask)
        gates_ptr = mixed_ptr + wide * stride_mixed + C + HV * DV + head
        alpha = tl.load(gates_ptr).to(tl.float32) + tl.load(dt_bias_ptr + head)
        log_decay = softplus(alpha) * tl.load(a_ptr + head)
        tl.store(decay_ptr + wide * HV + head, exp_near_one(log_decay))
        tl.store(beta_ptr + wide * HV + head, sigmoid(tl.load(gates_ptr + HV).to(tl.float32)))
    else:
        _place(order_ptr, until_ptr, parents_ptr, i_token, start, stop, BLOCK_NODES)
