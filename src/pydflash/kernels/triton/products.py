"""Products of exact rows: y[t] = W x[t], W streamed once for up to 64 of them.

The work, blocks of weight rows times units of K, is one line cut into equal ranges, one for each program
(Stream-K, Osama et al. 2023), so that no multiprocessor waits for another; weights are the left operand of
the matrix units, decoded in registers. Every sum runs in the order of K, and where the line is cut depends on
the weight alone, never on the number of tokens, so a row's bits are its own. The partial sums of a row are
added in order by whoever reads them (`pointwise`).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pydflash.kernels.triton import decode
from pydflash.kernels.triton.support import is_hopper, uses_assembly
from pydflash.kernels.triton.weights import Packed

Tensor = torch.Tensor

MOST_ROWS = 64
"""Tokens of one program."""

_F16 = tl.constexpr(decode.F16)


@triton.jit
def _add(acc, v0, v1, v2, v3, v4, v5, v6, v7, x, x_mask, WHOLE: tl.constexpr):
    """acc plus a unit's eight pieces f16 [n, 16] times their inputs, piece by piece in order of K.

    WHOLE writes it as one product, which the compiler cuts into these very pieces for Hopper's asynchronous
    matrix units. Others would cut it otherwise, and these are too wide for few tokens.
    """
    if not WHOLE:
        acc = tl.dot(v0, tl.load(x, mask=x_mask, other=0.0), acc)
        acc = tl.dot(v1, tl.load(x + 16, mask=x_mask, other=0.0), acc)
        acc = tl.dot(v2, tl.load(x + 32, mask=x_mask, other=0.0), acc)
        acc = tl.dot(v3, tl.load(x + 48, mask=x_mask, other=0.0), acc)
        acc = tl.dot(v4, tl.load(x + 64, mask=x_mask, other=0.0), acc)
        acc = tl.dot(v5, tl.load(x + 80, mask=x_mask, other=0.0), acc)
        acc = tl.dot(v6, tl.load(x + 96, mask=x_mask, other=0.0), acc)
        acc = tl.dot(v7, tl.load(x + 112, mask=x_mask, other=0.0), acc)
    else:
        low = _beside(_beside(v0, v1), _beside(v2, v3))
        whole = _beside(low, _beside(_beside(v4, v5), _beside(v6, v7)))
        acc = tl.dot(whole, tl.load(x, mask=x_mask, other=0.0), acc)
    return acc


@triton.jit
def _beside(a, b):
    """[n, k] and [n, k] -> [n, 2k]. Nothing moves: a thread's registers are only told apart anew."""
    rows: tl.constexpr = a.shape[0]
    cols: tl.constexpr = 2 * a.shape[1]
    return tl.join(a, b).permute(0, 2, 1).reshape(rows, cols)


@triton.jit
def tile_sums(
    words_ptr, high_ptr, scales_ptr, row0, tiles, units, first, count, x_ptr, x_stride, o_t, t_mask,
    KIND: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, STAGES: tl.constexpr,
    ASM: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """f32 [BLOCK_N, BLOCK_T]: rows from `row0` on, over `count` units from `first` on."""
    o_r = row0 + tl.arange(0, BLOCK_N)
    # A block may reach past the last tile: it reads that one again and stores nothing of it.
    tile = tl.minimum(o_r // 64, tiles - 1).to(tl.int64)
    unit = tile * units + first
    row = o_r % 64
    o_c = tl.arange(0, 16)
    o_k = tl.arange(0, 128)
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    x = x_ptr + (o_k if WHOLE else o_c)[:, None] + (o_t * x_stride)[None, :] + first * 128
    x_mask = t_mask[None, :]
    words: tl.constexpr = decode.tile_words(KIND)
    scales: tl.constexpr = decode.scale_words(KIND)
    w = words_ptr + (unit * words + row * 16)[:, None] + o_c[None, :]
    s = scales_ptr + ((unit * 64 + row) * scales)[:, None] + tl.arange(0, scales)[None, :]
    if KIND == _F16:
        w = words_ptr + (unit * 8192 + row * 128)[:, None] + o_k[None, :]
        x = x_ptr + o_k[:, None] + (o_t * x_stride)[None, :] + first * 128
        for _ in tl.range(count, num_stages=STAGES):
            acc = tl.dot(tl.load(w), tl.load(x, mask=x_mask, other=0.0), acc)
            w += 8192
            x += 128
    else:
        h = high_ptr + (unit * 1024 + row * 16)[:, None] + o_c[None, :]
        for _ in tl.range(count, num_stages=STAGES):
            v0, v1, v2, v3, v4, v5, v6, v7 = decode.weights(w, h, s, KIND, ASM)
            acc = _add(acc, v0, v1, v2, v3, v4, v5, v6, v7, x, x_mask, WHOLE)
            w += words
            h += 1024
            s += 64 * scales
            x += 128
    return acc


@triton.jit(do_not_specialize=["tokens"])
def product_kernel(
    x_ptr, out_ptr, row_scale_ptr, x_stride, tokens, rows, units, work,
    words0_ptr, high0_ptr, scales0_ptr, tiles0, rows0,
    words1_ptr, high1_ptr, scales1_ptr, tiles1, rows1,
    KIND0: tl.constexpr, KIND1: tl.constexpr, CUT_N: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr, STAGES: tl.constexpr, ASM: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """out f32 [slots, T, N] = partial sums of W x. Grid (parts of a block, ranges, blocks of T): programs
    do BLOCK_N rows of an equal share of the `work`, blocks of CUT_N rows times units of K."""
    i_p, i_g, ranges, i_t = tl.program_id(0), tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    o_t = i_t * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = o_t < tokens
    blocks0 = tl.cdiv(tiles0 * 64, CUT_N)
    at = i_g * work // ranges
    end = (i_g + 1) * work // ranges
    while at < end:
        block = at // units
        first = at - block * units
        count = tl.minimum(units - first, end - at)
        # Ranges before this one that reach into the block: the partial sums' place in the order.
        slot = i_g - ((block * units + 1) * ranges - 1) // work
        if block < blocks0:
            row0 = block * CUT_N + i_p * BLOCK_N
            o_n = row0 + tl.arange(0, BLOCK_N)
            scale = tl.load(row_scale_ptr + o_n, mask=o_n < rows0, other=0.0)
            acc = tile_sums(
                words0_ptr, high0_ptr, scales0_ptr, row0, tiles0, units, first, count,
                x_ptr, x_stride, o_t, t_mask, KIND0, BLOCK_N, BLOCK_T, STAGES, ASM, WHOLE,
            )  # fmt: skip
            store_sums(acc, scale, o_n, rows0, 0, out_ptr, slot, tokens, rows, o_t, t_mask)
        elif KIND1 != 0:
            row0 = (block - blocks0) * CUT_N + i_p * BLOCK_N
            o_n = row0 + tl.arange(0, BLOCK_N)
            scale = tl.load(row_scale_ptr + rows0 + o_n, mask=o_n < rows1, other=0.0)
            acc = tile_sums(
                words1_ptr, high1_ptr, scales1_ptr, row0, tiles1, units, first, count,
                x_ptr, x_stride, o_t, t_mask, KIND1, BLOCK_N, BLOCK_T, STAGES, ASM, WHOLE,
            )  # fmt: skip
            store_sums(acc, scale, o_n, rows1, rows0, out_ptr, slot, tokens, rows, o_t, t_mask)
        at += count


@triton.jit
def store_sums(acc, scale, o_n, count, row0, out_ptr, slot, tokens, rows, o_t, t_mask):
    n_mask = o_n < count
    line = (slot * tokens + o_t).to(tl.int64) * rows
    out = out_ptr + line[None, :] + (row0 + o_n)[:, None]
    tl.store(out, acc * scale[:, None], mask=n_mask[:, None] & t_mask[None, :])


def is_whole(block_t: int, warps: int, device: torch.device) -> bool:
    """Is a unit one product for Hopper's asynchronous matrix units, whose warps come in fours?"""
    return block_t >= 16 and warps >= 4 and is_hopper(device)


@dataclass(frozen=True, slots=True)
class Form:
    """How a launch is made: rows of a program, pipeline depth, warps, registers. Changes no bit."""

    block_n: int
    stages: int
    warps: int
    registers: int | None = None


def form_of(packed: Packed, block_t: int) -> Form:
    """The form for so many tokens, as measured on an H200 (benchmarks/)."""
    if block_t <= 8:
        return Form(64, 3, 2)
    # So few registers that three programs share a multiprocessor.
    return Form(packed.cut.block_n, 3, 4, 168 if block_t <= 32 else None)


def product(x: Tensor, packed: Packed, rows: int, form: Form | None = None) -> Tensor:
    """x f16 [T, K padded] -> f32 [slots, T, N], the partial sums of W x in order of K.

    Row n has `packed.slot_counts[n]` of them; those beyond are not written.
    """
    T = x.shape[0]
    cut = packed.cut
    assert not packed.is_table
    out = torch.empty(packed.slots, T, rows, dtype=torch.float32, device=x.device)
    block_t = 8 if T <= 8 else 16 if T <= 16 else 32 if T <= 32 else 64
    form = form or form_of(packed, block_t)
    extra: dict[str, object] = {}
    if form.registers is not None and uses_assembly():
        extra["maxnreg"] = form.registers
    for pieces, ranges, work in packed.launches:
        row0 = pieces[0].row0
        planes = [
            x if p is None else p
            for s in (pieces[0], pieces[-1])
            for p in (s.planes.words, s.planes.high, s.planes.scales)
        ]
        product_kernel[(cut.block_n // form.block_n, ranges, -(-T // block_t))](
            x,
            out[:, :, row0:],
            packed.row_scale[row0:],
            x.stride(0),
            T,
            rows,
            packed.units,
            work,
            *planes[:3],
            pieces[0].tiles,
            pieces[0].planes.rows,
            *planes[3:],
            pieces[-1].tiles,
            pieces[-1].planes.rows,
            KIND0=pieces[0].planes.kind,
            KIND1=pieces[1].planes.kind if len(pieces) > 1 else 0,
            CUT_N=cut.block_n,
            BLOCK_N=form.block_n,
            BLOCK_T=block_t,
            STAGES=form.stages,
            ASM=uses_assembly(),
            WHOLE=is_whole(block_t, form.warps, x.device),
            num_warps=form.warps,
            **extra,
        )
    return out
