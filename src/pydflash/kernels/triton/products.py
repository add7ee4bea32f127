"""Products of exact rows: y[t] = W x[t], W streamed once however many rows there are.

A program takes one or two tiles of 64 weight rows, a fixed range of K, and up to 64 tokens; weights are the
left operand of the matrix units, decoded in registers, and every sum runs in the order of K. Nothing about
the number of tokens enters that order, so a row's bits are its own. Partial sums of the ranges of K are
added in order by whoever reads them (`pointwise`).
"""

import torch
import triton
import triton.language as tl

from pydflash.kernels.triton import decode
from pydflash.kernels.triton.decode import fives, nibbles, octets, pair, sixes
from pydflash.kernels.triton.support import interpreting
from pydflash.kernels.triton.weights import Packed

Tensor = torch.Tensor

MOST_ROWS = 64
"""Tokens of one program."""

_F16 = tl.constexpr(decode.F16)
_NIBBLE = tl.constexpr(decode.NIBBLE)
_FINE = tl.constexpr(decode.NIBBLE_FINE)
_FIVE = tl.constexpr(decode.FIVE)
_SIX = tl.constexpr(decode.SIX)
_BYTE = tl.constexpr(decode.BYTE)


@triton.jit
def _eight(acc, v0, v1, v2, v3, v4, v5, v6, v7, s0, s1, s2, s3, x, x_mask, IS_AFFINE: tl.constexpr):
    """acc plus eight pieces times their inputs. s: int32 [n] of (scale, minimum) for two pieces, or of
    two scales for one piece each."""
    x0 = tl.load(x, mask=x_mask, other=0.0)
    x1 = tl.load(x + 16, mask=x_mask, other=0.0)
    x2 = tl.load(x + 32, mask=x_mask, other=0.0)
    x3 = tl.load(x + 48, mask=x_mask, other=0.0)
    x4 = tl.load(x + 64, mask=x_mask, other=0.0)
    x5 = tl.load(x + 80, mask=x_mask, other=0.0)
    x6 = tl.load(x + 96, mask=x_mask, other=0.0)
    x7 = tl.load(x + 112, mask=x_mask, other=0.0)
    a, b = pair(s0)
    acc = tl.dot(v0 * a - b if IS_AFFINE else v0 * a, x0, acc)
    acc = tl.dot(v1 * a - b if IS_AFFINE else v1 * b, x1, acc)
    a, b = pair(s1)
    acc = tl.dot(v2 * a - b if IS_AFFINE else v2 * a, x2, acc)
    acc = tl.dot(v3 * a - b if IS_AFFINE else v3 * b, x3, acc)
    a, b = pair(s2)
    acc = tl.dot(v4 * a - b if IS_AFFINE else v4 * a, x4, acc)
    acc = tl.dot(v5 * a - b if IS_AFFINE else v5 * b, x5, acc)
    a, b = pair(s3)
    acc = tl.dot(v6 * a - b if IS_AFFINE else v6 * a, x6, acc)
    acc = tl.dot(v7 * a - b if IS_AFFINE else v7 * b, x7, acc)
    return acc


@triton.jit
def _tile(
    words_ptr, high_ptr, scales_ptr, i_tile, tiles, units, first, count, x_ptr, x_stride, o_t, t_mask,
    KIND: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, STAGES: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """f32 [BLOCK_N, BLOCK_T]: rows of the tiles from `i_tile` on, over `count` units from `first` on."""
    o_r = tl.arange(0, BLOCK_N)
    # The last program may reach past the last tile: it reads that one again and stores nothing of it.
    tile = tl.minimum(i_tile + o_r // 64, tiles - 1).to(tl.int64)
    unit = tile * units + first
    row = o_r % 64
    o_c = tl.arange(0, 16)
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    x = x_ptr + o_c[:, None] + (o_t * x_stride)[None, :] + first * 128
    x_mask = t_mask[None, :]
    if KIND == _F16:
        o_k = tl.arange(0, 64)
        w = words_ptr + (unit * 8192 + row * 128)[:, None] + o_k[None, :]
        x = x_ptr + o_k[:, None] + (o_t * x_stride)[None, :] + first * 128
        for _ in tl.range(count, num_stages=STAGES):
            acc = tl.dot(tl.load(w), tl.load(x, mask=x_mask, other=0.0), acc)
            acc = tl.dot(tl.load(w + 64), tl.load(x + 64, mask=x_mask, other=0.0), acc)
            w += 8192
            x += 128
    elif KIND == _BYTE:
        w = words_ptr + (unit * 2048 + row * 16)[:, None] + o_c[None, :]
        s = scales_ptr + unit * 128 + row
        for _ in tl.range(2 * count, num_stages=STAGES):
            v0, v1, v2, v3 = octets(tl.load(w), ASM)
            a, b = pair(tl.load(s))
            acc = tl.dot(v0 * a, tl.load(x, mask=x_mask, other=0.0), acc)
            acc = tl.dot(v1 * a, tl.load(x + 16, mask=x_mask, other=0.0), acc)
            acc = tl.dot(v2 * b, tl.load(x + 32, mask=x_mask, other=0.0), acc)
            acc = tl.dot(v3 * b, tl.load(x + 48, mask=x_mask, other=0.0), acc)
            w += 1024
            s += 64
            x += 64
    elif KIND == _FINE:
        w = words_ptr + (unit * 1024 + row * 16)[:, None] + o_c[None, :]
        s = scales_ptr + unit * 512 + row
        for _ in tl.range(count, num_stages=STAGES):
            v0, v1, v2, v3, v4, v5, v6, v7 = nibbles(tl.load(w), ASM)
            a, b = pair(tl.load(s))
            acc = tl.dot(v0 * a - b, tl.load(x, mask=x_mask, other=0.0), acc)
            a, b = pair(tl.load(s + 64))
            acc = tl.dot(v1 * a - b, tl.load(x + 16, mask=x_mask, other=0.0), acc)
            a, b = pair(tl.load(s + 128))
            acc = tl.dot(v2 * a - b, tl.load(x + 32, mask=x_mask, other=0.0), acc)
            a, b = pair(tl.load(s + 192))
            acc = tl.dot(v3 * a - b, tl.load(x + 48, mask=x_mask, other=0.0), acc)
            a, b = pair(tl.load(s + 256))
            acc = tl.dot(v4 * a - b, tl.load(x + 64, mask=x_mask, other=0.0), acc)
            a, b = pair(tl.load(s + 320))
            acc = tl.dot(v5 * a - b, tl.load(x + 80, mask=x_mask, other=0.0), acc)
            a, b = pair(tl.load(s + 384))
            acc = tl.dot(v6 * a - b, tl.load(x + 96, mask=x_mask, other=0.0), acc)
            a, b = pair(tl.load(s + 448))
            acc = tl.dot(v7 * a - b, tl.load(x + 112, mask=x_mask, other=0.0), acc)
            w += 1024
            s += 512
            x += 128
    else:
        w = words_ptr + (unit * 1024 + row * 16)[:, None] + o_c[None, :]
        s = scales_ptr + unit * 256 + row
        if KIND != _NIBBLE:
            h = high_ptr + (unit * 1024 + row * 16)[:, None] + o_c[None, :]
        for _ in tl.range(count, num_stages=STAGES):
            b_w = tl.load(w)
            s0 = tl.load(s)
            s1 = tl.load(s + 64)
            s2 = tl.load(s + 128)
            s3 = tl.load(s + 192)
            if KIND == _NIBBLE:
                v0, v1, v2, v3, v4, v5, v6, v7 = nibbles(b_w, ASM)
            elif KIND == _FIVE:
                v0, v1, v2, v3, v4, v5, v6, v7 = fives(b_w, tl.load(h), ASM)
                h += 1024
            else:
                v0, v1, v2, v3, v4, v5, v6, v7 = sixes(b_w, tl.load(h), ASM)
                h += 1024
            acc = _eight(
                acc, v0, v1, v2, v3, v4, v5, v6, v7, s0, s1, s2, s3, x, x_mask, KIND != _SIX
            )
            w += 1024
            s += 256
            x += 128
    return acc


@triton.jit(do_not_specialize=["tokens"])
def product_kernel(
    x_ptr, out_ptr, row_scale_ptr, x_stride, tokens, rows, units, per,
    words0_ptr, high0_ptr, scales0_ptr, tiles0, rows0,
    words1_ptr, high1_ptr, scales1_ptr, tiles1, rows1,
    KIND0: tl.constexpr, KIND1: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """out f32 [splits, T, N] = partial sums of W x. Grid (programs of tiles, splits, blocks of T)."""
    i_n, i_s, i_t = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = i_s * per
    count = tl.minimum(per, units - first)
    o_t = i_t * BLOCK_T + tl.arange(0, BLOCK_T)
    t_mask = o_t < tokens
    step: tl.constexpr = BLOCK_N // 64
    programs0 = tl.cdiv(tiles0, step)
    if i_n < programs0:
        acc = _tile(
            words0_ptr, high0_ptr, scales0_ptr, i_n * step, tiles0, units, first, count,
            x_ptr, x_stride, o_t, t_mask, KIND0, BLOCK_N, BLOCK_T, STAGES, ASM,
        )  # fmt: skip
        o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
        _store(acc, o_n, rows0, 0, out_ptr, row_scale_ptr, i_s, tokens, rows, o_t, t_mask)
    elif KIND1 != 0:
        i_n -= programs0
        acc = _tile(
            words1_ptr, high1_ptr, scales1_ptr, i_n * step, tiles1, units, first, count,
            x_ptr, x_stride, o_t, t_mask, KIND1, BLOCK_N, BLOCK_T, STAGES, ASM,
        )  # fmt: skip
        o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
        _store(acc, o_n, rows1, rows0, out_ptr, row_scale_ptr, i_s, tokens, rows, o_t, t_mask)


@triton.jit
def _store(acc, o_n, count, row0, out_ptr, row_scale_ptr, i_s, tokens, rows, o_t, t_mask):
    n_mask = o_n < count
    scale = tl.load(row_scale_ptr + row0 + o_n, mask=n_mask, other=0.0)
    line = (i_s * tokens + o_t).to(tl.int64) * rows
    out = out_ptr + line[None, :] + (row0 + o_n)[:, None]
    tl.store(out, acc * scale[:, None], mask=n_mask[:, None] & t_mask[None, :])


def uses_assembly() -> bool:
    """Neither Triton's interpreter nor AMD's compiler knows NVIDIA's instructions."""
    return not interpreting() and torch.version.hip is None


def product(x: Tensor, packed: Packed, rows: int) -> Tensor:
    """x f16 [T, K padded] -> f32 [splits, T, N], the partial sums of W x in order of K."""
    T = x.shape[0]
    out = torch.empty(packed.splits, T, rows, dtype=torch.float32, device=x.device)
    per = -(-packed.units // packed.splits)
    block_t = 16 if T <= 16 else 32 if T <= 32 else 64
    row0 = 0
    segments = packed.segments
    for at in range(0, len(segments), 2):
        pieces = segments[at : at + 2]
        tiles = [s.tiles for s in pieces]
        # NOTE: wider blocks of FIVE go through shared memory and back (Triton 3.6).
        wide = all(s.planes.kind != decode.FIVE for s in pieces)
        block_n = 128 if wide and sum(tiles) * packed.splits >= 512 else 64
        programs = sum(-(-t // (block_n // 64)) for t in tiles)
        arguments = [p for s in pieces for p in (s.planes.words, s.planes.high, s.planes.scales)]
        first, second = arguments[:3], arguments[3:] or arguments[:3]
        product_kernel[(programs, packed.splits, -(-T // block_t))](
            x,
            out[:, :, row0:],
            packed.row_scale[row0:],
            x.stride(0),
            T,
            rows,
            packed.units,
            per,
            *(x if a is None else a for a in first),
            tiles[0],
            pieces[0].planes.rows,
            *(x if a is None else a for a in second),
            tiles[-1],
            pieces[-1].planes.rows,
            KIND0=pieces[0].planes.kind,
            KIND1=pieces[1].planes.kind if len(pieces) > 1 else 0,
            BLOCK_N=block_n,
            BLOCK_T=block_t,
            STAGES=4,
            ASM=uses_assembly(),
            num_warps=4,
        )
        row0 += sum(s.planes.rows for s in pieces)
    return out
