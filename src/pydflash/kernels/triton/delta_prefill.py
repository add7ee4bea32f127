"""Prefill rows of Gated DeltaNet in the chunked form of the reference, on the grid of absolute positions.

Three kernels: what tokens bring, what the chunks of a head bring whatever state they meet (parallel over
chunks), and the state's walk over chunks. A chunk is always a tile of CHUNK lanes, those outside the row
zero, so that rows cut on the grid have the same bits. The walk multiplies in three passes of bf16 halves,
which the kernel before it made of its operands: a relative error of 1e-5 or so in each product.
"""

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import DELTA_CHUNK, DeltaArgs, Recurrent
from pydflash.kernels.triton.delta_math import sigmoid, silu, softplus
from pydflash.kernels.triton.sums import row_stride

Tensor = torch.Tensor

BLOCK_T = 16
BLOCK_V = 32
STEP = 16
BLOCK_C = 512
_LENGTHS = ["n", "i_row"]


@triton.jit(do_not_specialize=_LENGTHS)
def prefill_inputs_kernel(
    mixed_ptr,
    stride_mixed,
    n,
    i_row,
    slots_ptr,
    conv_ptr,
    taps_ptr,
    stride_channel,
    stride_tap,
    a_ptr,
    dt_bias_ptr,
    qk_ptr,
    v_ptr,
    log_decay_ptr,
    beta_ptr,
    eps,
    scale,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    W: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Grid (2 HK + HV, blocks of tokens). qk [2, n, HK, DK] normalised, q scaled; v [n, HV, DV]; log decays
    and beta [n, HV]."""
    C: tl.constexpr = 2 * HK * DK + HV * DV
    i_head, i_block = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots_ptr + i_row).to(tl.int64)
    is_v = i_head >= 2 * HK
    size = tl.where(is_v, DV, DK)
    first = tl.where(is_v, 2 * HK * DK + (i_head - 2 * HK) * DV, i_head * DK)
    o_d = tl.arange(0, BLOCK_D)
    o_t = (i_block * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    o_c = first + o_d
    is_d = o_d < size
    mask = (o_t < n)[:, None] & is_d[None, :]
    b_sum = tl.zeros((BLOCK_T, BLOCK_D), tl.float32)
    for j in tl.static_range(W):
        o_s = o_t - (W - 1) + j
        here = mask & (o_s >= 0)[:, None]
        b_raw = tl.load(
            mixed_ptr + o_s[:, None] * stride_mixed + o_c[None, :], mask=here, other=0.0
        ).to(tl.float32)
        if j < W - 1:
            held = conv_ptr + (slot * (W - 1) + o_s + W - 1)[:, None] * C + o_c[None, :]
            b_raw += tl.load(held, mask=mask & (o_s < 0)[:, None], other=0.0)
        b_tap = tl.load(taps_ptr + o_c * stride_channel + j * stride_tap, mask=is_d, other=0.0)
        b_sum = tl.fma(b_raw, b_tap[None, :], b_sum)
    b_x = silu(b_sum)
    if is_v:
        head = i_head - 2 * HK
        tl.store(v_ptr + o_t[:, None] * HV * DV + head * DV + o_d[None, :], b_x, mask=mask)
        gates = mixed_ptr + o_t * stride_mixed + C + HV * DV + head
        b_alpha = tl.load(gates, mask=o_t < n, other=0.0).to(tl.float32)
        b_beta = tl.load(gates + HV, mask=o_t < n, other=0.0).to(tl.float32)
        b_log = softplus(b_alpha + tl.load(dt_bias_ptr + head)) * tl.load(a_ptr + head)
        tl.store(log_decay_ptr + o_t * HV + head, b_log, mask=o_t < n)
        tl.store(beta_ptr + o_t * HV + head, sigmoid(b_beta), mask=o_t < n)
    else:
        b_scale = tl.where(i_head < HK, scale, 1.0) / tl.maximum(tl.sqrt(tl.sum(b_x * b_x, 1)), eps)
        # heads of k follow those of q by n tokens
        row = o_t + (i_head // HK) * n
        o_x = row[:, None] * HK * DK + (i_head % HK) * DK + o_d[None, :]
        tl.store(qk_ptr + o_x, b_x * b_scale[:, None], mask=mask)


@triton.jit
def _lanes(base_ptr, i_row, i_chunk, CHUNK: tl.constexpr):
    """The row's tokens in a chunk's lanes, some of them negative in the first."""
    lead = tl.load(base_ptr + i_row) % CHUNK
    return (i_chunk * CHUNK - lead + tl.arange(0, CHUNK)).to(tl.int64)


@triton.jit
def _keep(ptr, plane, o_x, b_x, HAS_LOW: tl.constexpr):
    """Store an operand of matrix units: as it is, or as the sum of two halves a plane apart."""
    b_high = b_x.to(ptr.dtype.element_ty)
    tl.store(ptr + o_x, b_high)
    if HAS_LOW:
        tl.store(ptr + plane + o_x, (b_x - b_high.to(tl.float32)).to(ptr.dtype.element_ty))


@triton.jit
def _kept(ptr, plane, o_x, HAS_LOW: tl.constexpr):
    """What `_keep` stored: both halves, or the same twice."""
    b_high = tl.load(ptr + o_x)
    if HAS_LOW:
        b_low = tl.load(ptr + plane + o_x)
    else:
        b_low = b_high
    return b_high, b_low


@triton.jit
def _halves(b_x, HAS_LOW: tl.constexpr):
    if HAS_LOW:
        b_high = b_x.to(tl.bfloat16)
        b_low = (b_x - b_high.to(tl.float32)).to(tl.bfloat16)
    else:
        b_high, b_low = b_x, b_x
    return b_high, b_low


@triton.jit
def _add_product(b_sum, b_a, b_a_low, b_b, b_b_low, HAS_LOW: tl.constexpr):
    """b_sum + a b; of halves, all but the product of the low ones: 16 bits of each factor count."""
    if HAS_LOW:
        b_sum = tl.dot(b_a_low, b_b, b_sum)
        b_sum = tl.dot(b_a, b_b_low, b_sum)
    return tl.dot(b_a, b_b, b_sum, input_precision="ieee")


@triton.jit(do_not_specialize=_LENGTHS)
def prefill_solve_kernel(
    n,
    i_row,
    base_ptr,
    qk_ptr,
    v_ptr,
    log_decay_ptr,
    beta_ptr,
    u_ptr,
    operands_ptr,
    plane,
    decay_ptr,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    STEP: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_LOW: tl.constexpr,
):
    """Grid (chunks, HV). With A = (I + L)^-1 of the reference, per chunk and head: u = A beta v [CHUNK, DV];
    the operands w = A beta e^g k, e^g q and e^(g_last - g) k [CHUNK, BLOCK_K] and
    p = e^(g_t - g_s) q_t . k_s [CHUNK, CHUNK]; decay = e^g_last. Then delta = u - w S.
    """
    i_chunk, i_head = tl.program_id(0), tl.program_id(1)
    o_t = _lanes(base_ptr, i_row, i_chunk, CHUNK)
    is_t = (o_t >= 0) & (o_t < n)
    if tl.max(is_t.to(tl.int32), 0) == 0:
        return
    o_i, o_s = tl.arange(0, CHUNK), tl.arange(0, STEP)
    b_beta = tl.load(beta_ptr + o_t * HV + i_head, mask=is_t, other=0.0)
    b_log = tl.load(log_decay_ptr + o_t * HV + i_head, mask=is_t, other=0.0)
    b_g, g_last = tl.cumsum(b_log, 0), tl.sum(b_log, 0)
    b_since, b_left = tl.exp(b_g), tl.exp(tl.minimum(g_last - b_g, 0.0))
    chunk = (i_chunk * HV + i_head).to(tl.int64)
    own = operands_ptr + chunk * CHUNK * (3 * BLOCK_K + CHUNK)
    TILE: tl.constexpr = CHUNK * BLOCK_K
    queries = qk_ptr + o_t[:, None] * HK * DK + (i_head % HK) * DK
    keys = queries + n.to(tl.int64) * HK * DK
    b_kk = tl.zeros((CHUNK, CHUNK), tl.float32)
    b_qk = tl.zeros((CHUNK, CHUNK), tl.float32)
    for first in range(0, BLOCK_K, STEP):  # by steps: whole heads would not fit registers
        o_k = first + o_s[None, :]
        is_k = is_t[:, None] & (o_k < DK)
        b_q = tl.load(queries + o_k, mask=is_k, other=0.0)
        b_k = tl.load(keys + o_k, mask=is_k, other=0.0)
        b_kk = tl.dot(b_k, tl.trans(b_k), b_kk, input_precision=PRECISION)
        b_qk = tl.dot(b_q, tl.trans(b_k), b_qk, input_precision=PRECISION)
        o_own = o_i[:, None] * BLOCK_K + o_k
        _keep(own + TILE, plane, o_own, b_q * b_since[:, None], HAS_LOW)
        _keep(own + 2 * TILE, plane, o_own, b_k * b_left[:, None], HAS_LOW)
    below, above = o_i[:, None] >= o_i[None, :], o_i[:, None] < o_i[None, :]
    b_apart = b_g[:, None] - b_g[None, :]
    b_p = tl.where(below, b_qk * tl.exp(tl.where(below, b_apart, 0.0)), 0.0)
    _keep(own + 3 * TILE, plane, o_i[:, None] * CHUNK + o_i[None, :], b_p, HAS_LOW)
    tl.store(decay_ptr + chunk, tl.exp(g_last))
    # the transpose of L: k k^T is its own
    b_up = b_kk * b_beta[None, :] * tl.exp(tl.where(above, -b_apart, 0.0))
    b_up = tl.where(above, b_up, 0.0)
    b_a = tl.where(o_i[:, None] == o_i[None, :], 1.0, 0.0)
    for i in range(1, CHUNK):
        b_row = tl.sum(tl.where(o_i[None, :] == i, b_up, 0.0), 1)  # L[i, :]
        b_less = tl.sum(b_row[:, None] * b_a, 0)
        b_a = tl.where(o_i[:, None] == i, b_a - b_less[None, :], b_a)
    for first in range(0, BLOCK_K, STEP):
        o_k = first + o_s[None, :]
        b_k = tl.load(keys + o_k, mask=is_t[:, None] & (o_k < DK), other=0.0)
        b_w = tl.dot(b_a, b_k * (b_beta * b_since)[:, None], input_precision=PRECISION)
        _keep(own, plane, o_i[:, None] * BLOCK_K + o_k, b_w, HAS_LOW)
    values = v_ptr + (o_t[:, None] * HV + i_head) * DV
    for first in range(0, BLOCK_V, STEP):
        o_v = first + o_s[None, :]
        b_v = tl.load(values + o_v, mask=is_t[:, None] & (o_v < DV), other=0.0)
        b_u = tl.dot(b_a, b_v * b_beta[:, None], input_precision=PRECISION)
        tl.store(u_ptr + (chunk * CHUNK + o_i)[:, None] * DV + o_v, b_u, mask=o_v < DV)


@triton.jit(do_not_specialize=_LENGTHS)
def prefill_walk_kernel(
    n,
    i_row,
    base_ptr,
    slots_ptr,
    state_ptr,
    u_ptr,
    operands_ptr,
    plane,
    decay_ptr,
    out_ptr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_LOW: tl.constexpr,
):
    """Grid (slices of DV, HV). Writes out [n, HV, DV], the results before their norm, and the slot."""
    i_slice, i_head = tl.program_id(0), tl.program_id(1)
    o_i, o_k = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    o_v = i_slice * BLOCK_V + tl.arange(0, BLOCK_V)
    is_v = (o_v < DV)[None, :]
    slot = tl.load(slots_ptr + i_row).to(tl.int64)
    states = state_ptr + (slot * HV + i_head) * DK * DV + o_k[:, None] * DV + o_v[None, :]
    is_state = (o_k < DK)[:, None] & is_v
    b_state = tl.load(states, mask=is_state, other=0.0)
    o_own = o_i[:, None] * BLOCK_K + o_k[None, :]
    TILE: tl.constexpr = CHUNK * BLOCK_K
    chunks = tl.cdiv(tl.load(base_ptr + i_row) % CHUNK + n, CHUNK)
    for i_chunk in range(0, chunks):
        chunk = (i_chunk * HV + i_head).to(tl.int64)
        own = operands_ptr + chunk * CHUNK * (3 * BLOCK_K + CHUNK)
        b_w, b_w_low = _kept(own, plane, o_own, HAS_LOW)
        b_q, b_q_low = _kept(own + TILE, plane, o_own, HAS_LOW)
        b_k, b_k_low = _kept(own + 2 * TILE, plane, o_own, HAS_LOW)
        o_p = o_i[:, None] * CHUNK + o_i[None, :]
        b_p, b_p_low = _kept(own + 3 * TILE, plane, o_p, HAS_LOW)
        o_u = (chunk * CHUNK + o_i)[:, None] * DV + o_v[None, :]
        b_u = tl.load(u_ptr + o_u, mask=is_v, other=0.0)
        b_s, b_s_low = _halves(b_state, HAS_LOW)
        b_none = tl.zeros((CHUNK, BLOCK_V), tl.float32)
        b_delta = b_u - _add_product(b_none, b_w, b_w_low, b_s, b_s_low, HAS_LOW)
        b_out = _add_product(b_none, b_q, b_q_low, b_s, b_s_low, HAS_LOW)
        b_d, b_d_low = _halves(b_delta, HAS_LOW)
        b_out = _add_product(b_out, b_p, b_p_low, b_d, b_d_low, HAS_LOW)
        b_state = _add_product(
            b_state * tl.load(decay_ptr + chunk), tl.trans(b_k), tl.trans(b_k_low), b_d, b_d_low,
            HAS_LOW,
        )  # fmt: skip
        o_t = _lanes(base_ptr, i_row, i_chunk, CHUNK)
        is_t = (o_t >= 0) & (o_t < n)
        o_out = (o_t[:, None] * HV + i_head) * DV + o_v[None, :]
        tl.store(out_ptr + o_out, b_out, mask=is_t[:, None] & is_v)
    tl.store(states, b_state, mask=is_state)


@triton.jit(do_not_specialize=_LENGTHS)
def prefill_conv_kernel(
    mixed_ptr,
    stride_mixed,
    n,
    i_row,
    slots_ptr,
    conv_ptr,
    C: tl.constexpr,
    W: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The slot's convolution state becomes the last W - 1 of itself and the row. Grid (blocks of C)."""
    o_c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = o_c < C
    conv_ptr += tl.load(slots_ptr + i_row).to(tl.int64) * (W - 1) * C
    for j in tl.static_range(W - 1):  # from a later row of it, or from an input
        place = (n + j - (W - 1)).to(tl.int64)
        b_row = tl.load(mixed_ptr + place * stride_mixed + o_c, mask=mask & (place >= 0), other=0.0)
        b_held = tl.load(conv_ptr + (n + j) * C + o_c, mask=mask & (place < 0), other=0.0)
        tl.debug_barrier()
        tl.store(conv_ptr + j * C + o_c, b_row.to(tl.float32) + b_held, mask=mask)
        tl.debug_barrier()


def has_halves(device: torch.device) -> bool:
    """Do matrix units multiply bf16 and tf32 here? Otherwise f32 is multiplied as it is, and slowly; so does
    the interpreter, which takes bf16 for integers."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def prefill(
    mixed: Tensor,
    recurrent: Recurrent,
    args: DeltaArgs,
    i_row: int,
    slots: Tensor,
    base: Tensor,
    walked: Tensor,
) -> None:
    """One row: mixed [n, ...] -> walked f32 [n, Hv, Dv], before the norm; advances slots[i_row]."""
    HK, HV, DK, DV = args.k_heads, args.v_heads, args.k_dim, args.v_dim
    n, like, split = len(mixed), recurrent.state, has_halves(mixed.device)
    block_k, block_v = max(16, triton.next_power_of_2(DK)), max(16, triton.next_power_of_2(DV))
    qk = like.new_empty(2, n, HK, DK)
    v, log_decay, beta = like.new_empty(n, HV, DV), like.new_empty(n, HV), like.new_empty(n, HV)
    chunks = triton.cdiv(n, DELTA_CHUNK) + 1  # where on the grid the row begins, the device knows
    lanes = chunks * HV * DELTA_CHUNK
    u, decay = like.new_empty(lanes, DV), like.new_empty(chunks, HV)
    operands = torch.empty(
        (1 + split, lanes, 3 * block_k + DELTA_CHUNK),
        dtype=torch.bfloat16 if split else torch.float32,
        device=like.device,
    )
    prefill_inputs_kernel[(2 * HK + HV, triton.cdiv(n, BLOCK_T))](
        mixed, row_stride(mixed), n, i_row, slots, recurrent.conv, args.conv,
        *args.conv.stride(), args.a, args.dt_bias, qk, v, log_decay, beta, args.eps, DK**-0.5,
        HK=HK, HV=HV, DK=DK, DV=DV, W=args.conv.shape[1],
        BLOCK_T=BLOCK_T, BLOCK_D=max(block_k, block_v), num_warps=4,
    )  # fmt: skip
    prefill_solve_kernel[(chunks, HV)](
        n, i_row, base, qk, v, log_decay, beta, u, operands, operands.stride(0), decay,
        HK=HK, HV=HV, DK=DK, DV=DV, CHUNK=DELTA_CHUNK, BLOCK_K=block_k, BLOCK_V=block_v,
        STEP=STEP, PRECISION="tf32x3" if split else "ieee", HAS_LOW=split,
        num_warps=1, num_stages=1,
    )  # fmt: skip
    slice_v = min(BLOCK_V, block_v)
    prefill_walk_kernel[(triton.cdiv(DV, slice_v), HV)](
        n, i_row, base, slots, like, u, operands, operands.stride(0), decay, walked,
        HV=HV, DK=DK, DV=DV, CHUNK=DELTA_CHUNK, BLOCK_K=block_k, BLOCK_V=slice_v,
        HAS_LOW=split, num_warps=4, num_stages=2,
    )  # fmt: skip
    prefill_conv_kernel[(triton.cdiv(args.channels, BLOCK_C),)](
        mixed, row_stride(mixed), n, i_row, slots, recurrent.conv,
        C=args.channels, W=args.conv.shape[1], BLOCK_C=BLOCK_C, num_warps=4,
    )  # fmt: skip
