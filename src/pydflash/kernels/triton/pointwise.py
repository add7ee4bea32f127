"""Row by row between the products: norms, activations, and the sums of the products' partial results.

Whatever feeds a product is written as f16 in rows padded with zeros to whole units, saturated at f16's
largest number. Partial sums [slots, T, N] are always added in order, first to last.
"""

import functools

import torch
import triton
import triton.language as tl

from pydflash.errors import UnsupportedError

Tensor = torch.Tensor

MOST_JOINT = 64
"""Rows whose sum and norm are made by one launch."""
WARP = 128
"""Numbers that a warp takes at once, four a lane: of fewer, lanes write copies over one another."""
_ACTS = {"silu": 0, "gelu": 1}


@triton.jit
def saturated(x):
    """f32 to f16 without infinities."""
    return tl.clamp(x, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def stored(x, out_ptr):
    """x f32 as `out_ptr` has it: f32, or f16 without infinities."""
    if out_ptr.dtype.element_ty == tl.float16:
        y = saturated(x)
    else:
        y = x.to(out_ptr.dtype.element_ty)
    return y


@triton.jit
def normed_row(x, weight, N, eps):
    """x f32, zero beyond N, / rms(x) * weight, which is best loaded beforehand: the sum is a barrier."""
    return x * tl.rsqrt(tl.sum(x * x) / N + eps) * weight


@triton.jit
def norm_kernel(x_ptr, weight_ptr, out_ptr, E, width, eps, BLOCK: tl.constexpr):
    """out f16 [T, width] = x / rms(x) * weight; a program a row."""
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + o, mask=o < E, other=0.0)
    x = tl.load(x_ptr + i_t * E + o, mask=o < E, other=0.0)
    y = normed_row(x, weight, E, eps)
    tl.store(out_ptr + i_t * width + o, saturated(y), mask=o < width)


@triton.jit
def half_kernel(x_ptr, out_ptr, x_stride, K, width, BLOCK: tl.constexpr):
    """out f16 [T, width] = x f32 [T, K]. Grid (T, blocks of width)."""
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i_t * x_stride + o, mask=o < K, other=0.0)
    tl.store(out_ptr + i_t * width + o, saturated(x), mask=o < width)


@triton.jit
def sum_parts(parts_ptr, counts_ptr, o, at, stride, SLOTS: tl.constexpr, mask):
    """The partial sums at `at` of rows `o`, added in order."""
    total = tl.load(parts_ptr + at, mask=mask, other=0.0)
    if SLOTS > 1:
        stride = stride.to(tl.int64)
        counts = tl.load(counts_ptr + o, mask=mask, other=0)
        for s in tl.static_range(1, SLOTS):
            # Read whether it counts or not: a load that waits for another costs more than its bytes.
            part = tl.load(parts_ptr + at + s * stride, mask=mask, other=0.0)
            total += tl.where(s < counts, part, 0.0)
    return total


@triton.jit
def _total(
    parts_ptr, counts_ptr, residual_ptr, bias_ptr, i_t, o, tokens, N,
    SLOTS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Columns `o` of row `i_t`: the partial sums [slots, tokens, N] + bias + residual."""
    mask = o < N
    at = i_t * N + o
    y = sum_parts(parts_ptr, counts_ptr, o, at, tokens.to(tl.int64) * N, SLOTS, mask)
    if HAS_BIAS:
        y += tl.load(bias_ptr + o, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        y += tl.load(residual_ptr + at, mask=mask, other=0.0)
    return y


@triton.jit(do_not_specialize=["tokens"])
def finish_kernel(
    parts_ptr, counts_ptr, residual_ptr, bias_ptr, out_ptr, tokens, N,
    SLOTS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out f32 [T, N] = residual + bias + the partial sums. Grid (T, blocks of N)."""
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = _total(
        parts_ptr, counts_ptr, residual_ptr, bias_ptr, i_t, o, tokens, N,
        SLOTS, HAS_RESIDUAL, HAS_BIAS,
    )  # fmt: skip
    tl.store(out_ptr + i_t * N + o, y, mask=o < N)


@triton.jit(do_not_specialize=["tokens"])
def finish_norm_kernel(
    parts_ptr, counts_ptr, x_ptr, bias_ptr, weight_ptr, out_ptr, arrived_ptr, tokens, N, width, eps,
    SLOTS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_ROW: tl.constexpr,
):  # fmt: skip
    """x f32 [T, N] += bias + the partial sums; out f16 [T, width] = its norm, by the program of a row that is
    the last to be done. Grid (T, blocks of N); arrived int32 [T] is zero before and after."""
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = _total(
        parts_ptr, counts_ptr, x_ptr, bias_ptr, i_t, o, tokens, N, SLOTS, True, HAS_BIAS
    )  # fmt: skip
    tl.store(x_ptr + i_t * N + o, y, mask=o < N)
    tl.debug_barrier()  # every thread's part is stored before one of them tells
    before = tl.atomic_add(arrived_ptr + i_t, 1, sem="acq_rel")
    if before == tl.num_programs(1) - 1:
        o_row = tl.arange(0, BLOCK_ROW)
        weight = tl.load(weight_ptr + o_row, mask=o_row < N, other=0.0)
        x = tl.load(x_ptr + i_t * N + o_row, mask=o_row < N, other=0.0, cache_modifier=".cg")
        normed = normed_row(x, weight, N, eps)
        tl.store(out_ptr + i_t * width + o_row, saturated(normed), mask=o_row < width)
        tl.store(arrived_ptr + i_t, 0)


@triton.jit(do_not_specialize=["tokens"])
def gated_kernel(
    parts_ptr, counts_ptr, bias_ptr, out_ptr, tokens, F, width,
    SLOTS: tl.constexpr, HAS_BIAS: tl.constexpr, ACT: tl.constexpr, HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out [T, width] = act(gate) * up of partial sums [slots, T, 2F]. Grid (T, blocks of width)."""
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = o < F
    at = i_t * 2 * F + o
    stride = tokens.to(tl.int64) * 2 * F
    gate = sum_parts(parts_ptr, counts_ptr, o, at, stride, SLOTS, mask)
    up = sum_parts(parts_ptr, counts_ptr, F + o, at + F, stride, SLOTS, mask)
    if HAS_BIAS:
        gate += tl.load(bias_ptr + o, mask=mask, other=0.0)
        up += tl.load(bias_ptr + F + o, mask=mask, other=0.0)
    if ACT == 0:
        y = gate / (1.0 + tl.exp(-gate)) * up
    else:
        # 2 sigmoid(2 z) - 1 = tanh(z)
        z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        y = gate / (1.0 + tl.exp(-2.0 * z)) * up
    at = i_t * width + o
    if HALF:
        tl.store(out_ptr + at, saturated(y), mask=o < width)
    else:
        tl.store(out_ptr + at, y, mask=mask)


def norm(x: Tensor, weight: Tensor, eps: float, width: int) -> Tensor:
    """rms norm of x f32 [T, E] -> f16 [T, width], zeros beyond E."""
    T, E = x.shape
    out = torch.empty(T, width, dtype=torch.float16, device=x.device)
    block = triton.next_power_of_2(width)
    norm_kernel[(T,)](
        x,
        weight,
        out,
        E,
        width,
        eps,
        BLOCK=block,
        num_warps=_warps(block),
    )
    return out


def half(x: Tensor, width: int) -> Tensor:
    """x f32 [T, K] -> f16 [T, width], zeros beyond K. Rows of x may lie apart."""
    T, K = x.shape
    out = torch.empty(T, width, dtype=torch.float16, device=x.device)
    half_kernel[(T, triton.cdiv(width, 1024))](x, out, x.stride(0), K, width, BLOCK=1024)
    return out


def finish(
    parts: Tensor,
    counts: Tensor,
    *,
    residual: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None = None,
) -> Tensor:
    """Partial sums f32 [slots, T, N], counts int32 [N] of each row, -> f32 [T, N], plus a residual and a
    bias."""
    slots, T, N = parts.shape
    if slots == 1 and residual is None and bias is None and out is None:
        return parts[0]
    if out is None:
        out = torch.empty(T, N, dtype=torch.float32, device=parts.device)
    finish_kernel[(T, triton.cdiv(N, 512))](
        parts,
        counts,
        parts if residual is None else residual,
        parts if bias is None else bias,
        out,
        T,
        N,
        SLOTS=slots,
        HAS_RESIDUAL=residual is not None,
        HAS_BIAS=bias is not None,
        BLOCK=512,
        num_warps=4,
    )
    return out


def finish_norm(
    parts: Tensor,
    counts: Tensor,
    x: Tensor,
    bias: Tensor | None,
    weight: Tensor,
    eps: float,
    width: int,
) -> Tensor:
    """x f32 [T, N] += partial sums f32 [slots, T, N] and a bias; its rms norm -> f16 [T, width].

    T is at most MOST_JOINT.
    """
    slots, T, N = parts.shape
    assert T <= MOST_JOINT
    out = torch.empty(T, width, dtype=torch.float16, device=x.device)
    block_row = triton.next_power_of_2(width)
    finish_norm_kernel[(T, triton.cdiv(N, 512))](
        parts,
        counts,
        x,
        parts if bias is None else bias,
        weight,
        out,
        arrived(x.device),
        T,
        N,
        width,
        eps,
        SLOTS=slots,
        HAS_BIAS=bias is not None,
        BLOCK=512,
        BLOCK_ROW=block_row,
        num_warps=_warps(block_row),
    )
    return out


def arrived(device: torch.device) -> Tensor:
    """Zeros int32 [MOST_JOINT], which each launch leaves as it found them: those of a stream follow each
    other. To be made before anything is captured."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return _arrived(device, stream)


@functools.cache
def _arrived(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(MOST_JOINT, dtype=torch.int32, device=device)


def gated(
    parts: Tensor, counts: Tensor, bias: Tensor | None, act: str, width: int | None
) -> Tensor:
    """Partial sums f32 [slots, T, 2F] -> act(gate) * up: f16 [T, width], or f32 [T, F] without a width."""
    slots, T, N = parts.shape
    if act not in _ACTS:
        raise UnsupportedError(f"unknown activation {act!r}")
    F = N // 2
    dtype = torch.float32 if width is None else torch.float16
    out = torch.empty(T, F if width is None else width, dtype=dtype, device=parts.device)
    gated_kernel[(T, triton.cdiv(out.shape[1], 256))](
        parts,
        counts,
        parts if bias is None else bias,
        out,
        T,
        F,
        out.shape[1],
        SLOTS=slots,
        HAS_BIAS=bias is not None,
        ACT=_ACTS[act],
        HALF=width is not None,
        BLOCK=256,
        num_warps=4,
    )
    return out


def _warps(block: int) -> int:
    return max(1, min(16, block // 512))
