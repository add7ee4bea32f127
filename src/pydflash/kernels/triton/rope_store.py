"""Before attention: norm, rotate and store keys and values in their pages, norm and rotate queries.

One launch for all heads and tokens: a program is one head of one token, so a token's bits know nothing of
the rest of the step.
"""

import math

import torch
import triton
import triton.language as tl

from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import PAGE_SIZE, AttnArgs, PagedKV, StepBatch
from pydflash.kernels.triton.pointwise import sum_parts
from pydflash.kernels.triton.sums import Sums

Tensor = torch.Tensor

LOG2E = math.log2(math.e)
_FORMATS = ("f32", "f16", "bf16", "q8_0")


def rope_store(qkv: Sums, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> Tensor:
    """qkv f32 [T, (H or 2H, + 2G) * D], or its partial sums, -> q [T, H, D], normed, rotated and times
    `query_scale(args)`: f32 for f32 keys, else f16. Keys and values go to their pages."""
    kind = torch.float32 if kv.k_format == "f32" else torch.float16
    q = torch.empty(
        (qkv.rows, args.heads, args.head_dim), dtype=kind, device=qkv.parts.device
    )  # attention reads it once
    _launch(qkv, q, kv, args, batch)
    return q


def store_kv(pairs: Tensor, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> None:
    """pairs f32 [T, 2G * D], keys then values; its rows may lie apart. Stores both, attends to nothing."""
    _launch(Sums.of(pairs), None, kv, args, batch)


def query_scale(args: AttnArgs) -> float:
    """What queries are multiplied by: softmax is in powers of two, and a soft cap wants scores / cap."""
    return args.scale / args.softcap if args.softcap else args.scale * LOG2E


def check_pages(kv: PagedKV, args: AttnArgs) -> None:
    """Raise UnsupportedError for pages that these kernels do not read."""
    for name in (kv.k_format, kv.v_format):
        if name not in _FORMATS:
            raise UnsupportedError(
                f"KV pages in {name}; the Triton kernels know {', '.join(_FORMATS)}"
            )
        if name == "q8_0" and args.head_dim % 32:
            raise UnsupportedError(
                f"KV pages in q8_0 need heads of whole 32 dimensions, not {args.head_dim}; "
                "choose f16 for the KV cache"
            )


def _launch(x: Sums, q: Tensor | None, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> None:
    check_pages(kv, args)
    heads = 0 if q is None else args.heads
    rope = args.rope
    D = args.head_dim
    rope_store_kernel[(x.rows, heads + 2 * args.kv_heads)](
        x.parts,
        x.counts,
        x.parts if q is None else q,  # without queries nothing is written there
        kv.k,
        kv.k_scale,
        kv.v,
        kv.v_scale,
        args.q_norm,
        args.k_norm,
        None if rope is None else rope.cos,
        None if rope is None else rope.sin,
        batch.positions,
        batch.write_slots,
        x.stride,
        x.apart,
        query_scale(args),
        args.eps,
        HEADS=heads,
        Q_STEP=2 if args.gated else 1,
        KV_HEADS=args.kv_heads,
        D=D,
        BLOCK_D=max(32, triton.next_power_of_2(D)),
        ROPE_DIMS=0 if rope is None else rope.dims,
        INTERLEAVED=rope is not None and rope.interleaved,
        PAGE=PAGE_SIZE,
        SLOTS=x.slots,
        num_warps=1,
    )


@triton.jit(do_not_specialize=["apart", "q_scale", "eps"])
def rope_store_kernel(
    x_ptr,
    counts_ptr,
    q_ptr,
    k_ptr,
    k_scale_ptr,
    v_ptr,
    v_scale_ptr,
    q_norm_ptr,
    k_norm_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    write_slots_ptr,
    x_stride,
    apart,
    q_scale,
    eps,
    HEADS: tl.constexpr,
    Q_STEP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROPE_DIMS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PAGE: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """x in SLOTS partial sums. Grid (T, HEADS + 2 KV_HEADS): queries (HEADS of them, every Q_STEP-th part),
    keys, values."""
    i_t = tl.program_id(0).to(tl.int64)
    i_part = tl.program_id(1)
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    x_ptr += i_t * x_stride
    if i_part < HEADS:
        b_x = _rotated(
            x_ptr, counts_ptr, i_part * (Q_STEP * D), apart,
            q_norm_ptr, cos_ptr, sin_ptr, positions_ptr + i_t, eps,
            D, BLOCK_D, ROPE_DIMS, INTERLEAVED, SLOTS,
        )  # fmt: skip
        q_ptr += (i_t * HEADS + i_part) * D
        tl.store(q_ptr + o_d, (b_x * q_scale).to(q_ptr.dtype.element_ty), mask=m_d)
    else:
        slot = tl.load(write_slots_ptr + i_t)
        page = (slot // PAGE).to(tl.int64)
        lane = slot % PAGE
        column = HEADS * (Q_STEP - 1) * D + i_part * D
        if i_part < HEADS + KV_HEADS:
            b_x = _rotated(
                x_ptr, counts_ptr, column, apart, k_norm_ptr, cos_ptr, sin_ptr, positions_ptr + i_t, eps,
                D, BLOCK_D, ROPE_DIMS, INTERLEAVED, SLOTS,
            )  # fmt: skip
            first = page * KV_HEADS + i_part - HEADS
            _store(
                b_x, k_ptr + first * (D * PAGE) + lane, k_scale_ptr,
                first * (D // 32 * PAGE) + lane, PAGE, D, BLOCK_D,
            )  # fmt: skip
        else:
            o_x = column + o_d
            b_x = sum_parts(x_ptr, counts_ptr, o_x, o_x, apart, SLOTS, m_d)
            first = (page * KV_HEADS + i_part - HEADS - KV_HEADS) * PAGE + lane
            _store(
                b_x, v_ptr + first * D, v_scale_ptr, first * (D // 32), 1, D, BLOCK_D
            )  # fmt: skip


@triton.jit
def _rotated(
    x_ptr, counts_ptr, column, apart, norm_ptr, cos_ptr, sin_ptr, position_ptr, eps,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROPE_DIMS: tl.constexpr, INTERLEAVED: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """One head [BLOCK_D] from `column` on, times its norm, rotated. A dimension meets its partner by a second
    load."""
    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    o_x = column + o_d
    b_x = sum_parts(x_ptr, counts_ptr, o_x, o_x, apart, SLOTS, m_d)
    rms = 1.0
    if norm_ptr is not None:
        rms = tl.rsqrt(tl.sum(b_x * b_x, 0) / D + eps)
        b_x = b_x * rms * tl.load(norm_ptr + o_d, mask=m_d, other=0.0)
    if ROPE_DIMS > 0:
        half: tl.constexpr = ROPE_DIMS // 2
        if INTERLEAVED:
            is_first = o_d % 2 == 0
            pair = o_d // 2
            other = o_d ^ 1
        else:
            is_first = o_d < half
            pair = tl.where(is_first, o_d, o_d - half)
            other = tl.where(is_first, o_d + half, o_d - half)
        turned = o_d < ROPE_DIMS
        o_y = column + other
        b_y = sum_parts(x_ptr, counts_ptr, o_y, o_y, apart, SLOTS, turned)
        if norm_ptr is not None:
            b_y = b_y * rms * tl.load(norm_ptr + other, mask=turned, other=0.0)
        row = tl.load(position_ptr).to(tl.int64) * half
        b_cos = tl.load(cos_ptr + row + pair, mask=turned, other=1.0)
        b_sin = tl.load(sin_ptr + row + pair, mask=turned, other=0.0)
        b_x = b_x * b_cos + tl.where(is_first, -b_y, b_y) * b_sin
    return b_x


@triton.jit
def _store(
    b_x, out_ptr, scale_ptr, o_scale,
    STEP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write a head [BLOCK_D] as the pages have it, its dimensions (and its scales) STEP elements apart."""
    o_d = tl.arange(0, BLOCK_D)
    if scale_ptr is not None:
        b_x = tl.reshape(b_x, (BLOCK_D // 32, 32))
        b_scale = tl.div_rn(tl.max(tl.abs(b_x), 1), 127.0)
        b_inverse = tl.where(b_scale > 0, tl.div_rn(1.0, tl.where(b_scale > 0, b_scale, 1.0)), 0.0)
        b_x = b_x * b_inverse[:, None]
        b_code = tl.floor(tl.abs(b_x) + 0.5)
        b_code = tl.where(b_x < 0, -b_code, b_code)
        o_block = tl.arange(0, BLOCK_D // 32)
        tl.store(
            scale_ptr + o_scale + o_block * STEP,
            b_scale.to(tl.float16),
            mask=o_block < D // 32,
        )
        b_x = tl.reshape(b_code.to(tl.int8), (BLOCK_D,))
    tl.store(out_ptr + o_d * STEP, b_x.to(out_ptr.dtype.element_ty), mask=o_d < D)
