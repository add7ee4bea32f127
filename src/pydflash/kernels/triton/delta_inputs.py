"""What exact tokens bring to the recurrence: convolution, silu, l2 norms, gates, and the walk's order.

A program takes one token and one head (a key head's q and k, or a value head's v and gates), or the token's
place in the walk. Only a row of one token writes its slot's convolution state, and each of its channels is
read and written by one program. What a program reads it asks for at once: it waits more than it works.
"""

import triton
import triton.language as tl

from pydflash.kernels.triton.delta_math import exp_near_one, sigmoid, silu, softplus
from pydflash.kernels.triton.pointwise import sum_parts


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
def _sources(parents_ptr, i_token, start, W: tl.constexpr, HAS_PARENTS: tl.constexpr):
    """Where the convolution's W inputs are, the token's own first: tokens of the step, and for what lies
    before the row's first token, which has -1 there, rows of the convolution's state."""
    tokens = (i_token,)
    held = (0,)
    ancestor = i_token
    missing = 0
    for _ in tl.static_range(W - 1):
        if missing == 0:
            ancestor = parent_of(parents_ptr, ancestor, start, HAS_PARENTS)
        missing += tl.where(ancestor < 0, 1, 0)
        tokens += (ancestor,)
        held += (W - 1 - tl.maximum(missing, 1),)
    return tokens, held


@triton.jit
def _asked(
    mixed_ptr, counts_ptr, stride_mixed, apart, conv_ptr, taps_ptr, stride_channel, stride_tap,
    tokens, held, o_c, mask, C: tl.constexpr, W: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """What the convolution reads at channels o_c, each a vector of its own: as rows of one block they would
    move between threads. Nothing is computed here, so that no load waits for another: of W inputs SLOTS
    partial sums each, the token's own first; what is held instead of W - 1 of them; taps; counts.
    """
    parts = ()
    for j in tl.static_range(W):
        own = mask & (tokens[j] >= 0)
        at = tl.maximum(tokens[j], 0).to(tl.int64) * stride_mixed + o_c
        for s in tl.static_range(SLOTS):
            parts += (tl.load(mixed_ptr + at + s * apart.to(tl.int64), mask=own, other=0.0),)
    before = ()
    for j in tl.static_range(1, W):
        is_held = mask & (tokens[j] < 0)
        before += (tl.load(conv_ptr + held[j] * C + o_c, mask=is_held, other=0.0),)
    taps = ()
    for j in tl.static_range(W):
        at = o_c * stride_channel + j * stride_tap
        taps += (tl.load(taps_ptr + at, mask=mask, other=0.0),)
    b_counts = o_c * 0 + 1
    if SLOTS > 1:
        b_counts = tl.load(counts_ptr + o_c, mask=mask, other=0)
    return parts, before, taps, b_counts


@triton.jit
def _raw(asked, tokens, W: tl.constexpr, SLOTS: tl.constexpr):
    """The convolution's inputs: W times f32 [channels], the token's own first."""
    parts, before, _, b_counts = asked
    raw = ()
    for j in tl.static_range(W):
        b_x = parts[j * SLOTS].to(tl.float32)
        for s in tl.static_range(1, SLOTS):
            b_x += tl.where(s < b_counts, parts[j * SLOTS + s], 0.0)
        if j > 0:
            b_x = tl.where(tokens[j] >= 0, b_x, before[j - 1])
        raw += (b_x,)
    return raw


@triton.jit
def _convolved(raw, asked, W: tl.constexpr):
    """silu of the convolution: [channels]."""
    taps = asked[2]
    b_y = tl.zeros_like(raw[0])
    for j in tl.static_range(W):
        b_y = tl.fma(raw[W - 1 - j], taps[j], b_y)
    return silu(b_y)


@triton.jit
def _keep(raw, conv_ptr, rows_ptr, is_single, wide, o_c, mask, C: tl.constexpr, W: tl.constexpr):
    """The token's inputs, to the tape; of a row of one token the last W - 1, to the convolution's state."""
    own_ptr = tl.where(is_single, conv_ptr + (W - 2) * C, rows_ptr + wide * C)
    tl.store(own_ptr + o_c, raw[0], mask=mask)
    for j in tl.static_range(1, W - 1):
        tl.store(conv_ptr + (W - 2 - j) * C + o_c, raw[j], mask=mask & is_single)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _lowest(bits):
    """The lowest of the bits that are set."""
    return bits ^ (bits & (bits - 1))


@triton.jit
def _place(order_ptr, until_ptr, parents_ptr, i_token, start, stop, BLOCK: tl.constexpr):
    """The token's place when its row is walked depth first, and twice the place after its last descendant,
    plus 1 if a sibling comes after it. A node's leaves come first, then its other children, the last first:
    trees are grown from the best on, so the largest branch is the last.

    For rows of up to BLOCK <= 64 nodes. A set of nodes is a number whose bits they are.
    """
    o_u = tl.arange(0, BLOCK)
    is_node = o_u < stop - start
    b_up = tl.load(parents_ptr + start + o_u, mask=is_node, other=-1) - start
    b_up = tl.where(b_up < o_u, b_up, -1)
    b_up = tl.maximum(tl.where(is_node, b_up, -1), -1)
    one = tl.full((BLOCK,), 1, tl.uint64)
    none = tl.zeros((BLOCK,), tl.uint64)
    b_own = one << o_u.to(tl.uint64)
    b_path = b_own  # a node and its ancestors: each round finds as many more as there are
    b_jump = b_up
    while tl.max(b_jump, 0) >= 0:
        b_from = tl.maximum(b_jump, 0)
        b_path |= tl.where(b_jump >= 0, tl.gather(b_path, b_from, 0), none)
        b_jump = tl.where(b_jump >= 0, tl.gather(b_jump, b_from, 0), -1)
    inner = tl.reduce(
        tl.where(b_up >= 0, one << tl.maximum(b_up, 0).to(tl.uint64), none), 0, _either
    )
    is_me = o_u == i_token - start
    my_path = tl.reduce(tl.where(is_me, b_path, none), 0, _either)
    me = tl.reduce(tl.where(is_me, b_own, none), 0, _either)
    b_both = b_path & my_path
    # The children of the last common ancestor on either path; a parent is before its children.
    b_theirs, b_mine = _lowest(b_path ^ b_both), _lowest(my_path ^ b_both)
    theirs_inner, mine_inner = (b_theirs & inner) != 0, (b_mine & inner) != 0
    is_first = tl.where(theirs_inner == mine_inner, (b_theirs < b_mine) ^ mine_inner, mine_inner)
    is_first |= b_theirs == 0
    before = tl.sum((is_node & (b_mine != 0) & is_first).to(tl.int32), 0)
    under = tl.sum((is_node & (b_mine == 0)).to(tl.int32), 0)
    is_later = is_node & (b_theirs == b_own) & (b_mine == me) & ~is_first
    later = tl.max(is_later.to(tl.int32), 0)
    tl.store(order_ptr + start + before, i_token)
    tl.store(until_ptr + start + before, (start + before + under) * 2 + later)


@triton.jit
def _place_in_many(order_ptr, until_ptr, parents_ptr, i_token, start, stop, BLOCK: tl.constexpr):
    """The same for any row, in the order of tokens and with no word of siblings.

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
    tl.store(until_ptr + start + before, (start + before + under) * 2)


@triton.jit(do_not_specialize=["apart"])
def delta_inputs_kernel(
    mixed_ptr,
    counts_ptr,
    stride_mixed,
    apart,
    conv_ptr,
    taps_ptr,
    stride_channel,
    stride_tap,
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
    SLOTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_NODES: tl.constexpr,
    HAS_PARENTS: tl.constexpr,
):
    """mixed in SLOTS partial sums. Grid (T, HK + HV + HAS_PARENTS).

    q [T, HK, DK] scaled, k [T, HK, DK], their products qk [T, HK], v [T, HV, DV], decay and beta [T, HV],
    rows [T, C], order and until [T].
    """
    C: tl.constexpr = 2 * HK * DK + HV * DV
    i_token = tl.program_id(0)
    i_head = tl.num_programs(1) - 1 - tl.program_id(1)  # a place takes longest: it goes first
    i_row = tl.load(row_of_ptr + i_token)
    start, stop = tl.load(starts_ptr + i_row), tl.load(starts_ptr + i_row + 1)
    slot = tl.load(slots_ptr + i_row).to(tl.int64)
    is_single = stop - start == 1
    wide = i_token.to(tl.int64)
    if i_head < HK + HV:
        conv_ptr += slot * (W - 1) * C
        tokens, held = _sources(parents_ptr, i_token, start, W, HAS_PARENTS)
        if i_head < HK:
            o_k = tl.arange(0, BLOCK_K)
            is_k = o_k < DK
            o_q = i_head * DK + o_k
            o_key = HK * DK + o_q
            asked_q = _asked(
                mixed_ptr, counts_ptr, stride_mixed, apart, conv_ptr, taps_ptr, stride_channel,
                stride_tap, tokens, held, o_q, is_k, C, W, SLOTS,
            )  # fmt: skip
            asked_k = _asked(
                mixed_ptr, counts_ptr, stride_mixed, apart, conv_ptr, taps_ptr, stride_channel,
                stride_tap, tokens, held, o_key, is_k, C, W, SLOTS,
            )  # fmt: skip
            raw_q, raw_k = _raw(asked_q, tokens, W, SLOTS), _raw(asked_k, tokens, W, SLOTS)
            b_q, b_k = _convolved(raw_q, asked_q, W), _convolved(raw_k, asked_k, W)
            tl.debug_barrier()  # every thread has read what others overwrite
            _keep(raw_q, conv_ptr, rows_ptr, is_single, wide, o_q, is_k, C, W)
            _keep(raw_k, conv_ptr, rows_ptr, is_single, wide, o_key, is_k, C, W)
            b_q *= scale / tl.maximum(tl.sqrt(tl.sum(b_q * b_q, 0)), eps)
            b_k *= 1.0 / tl.maximum(tl.sqrt(tl.sum(b_k * b_k, 0)), eps)
            tl.store(q_ptr + wide * HK * DK + o_q, b_q, mask=is_k)
            tl.store(k_ptr + wide * HK * DK + o_q, b_k, mask=is_k)
            tl.store(qk_ptr + wide * HK + i_head, tl.sum(b_q * b_k, 0))
        else:
            head = i_head - HK
            o_v = tl.arange(0, BLOCK_V)
            is_v = o_v < DV
            o_value = 2 * HK * DK + head * DV + o_v
            # Both gates, alpha then beta, in one load.
            o_gate = C + HV * DV + head + tl.arange(0, 2) * HV
            at = wide * stride_mixed + o_gate
            b_gates = sum_parts(mixed_ptr, counts_ptr, o_gate, at, apart, SLOTS, o_gate >= 0)
            alpha, beta = tl.split(b_gates.to(tl.float32))
            alpha += tl.load(dt_bias_ptr + head)
            a = tl.load(a_ptr + head)
            asked = _asked(
                mixed_ptr, counts_ptr, stride_mixed, apart, conv_ptr, taps_ptr, stride_channel,
                stride_tap, tokens, held, o_value, is_v, C, W, SLOTS,
            )  # fmt: skip
            raw = _raw(asked, tokens, W, SLOTS)
            b_v = _convolved(raw, asked, W)
            tl.debug_barrier()
            _keep(raw, conv_ptr, rows_ptr, is_single, wide, o_value, is_v, C, W)
            tl.store(v_ptr + wide * HV * DV + head * DV + o_v, b_v, mask=is_v)
            tl.store(decay_ptr + wide * HV + head, exp_near_one(softplus(alpha) * a))
            tl.store(beta_ptr + wide * HV + head, sigmoid(beta))
    elif stop - start <= BLOCK_NODES:
        _place(order_ptr, until_ptr, parents_ptr, i_token, start, stop, BLOCK_NODES)
    else:
        _place_in_many(order_ptr, until_ptr, parents_ptr, i_token, start, stop, BLOCK_NODES)
