"""Rows of an embedding table, decoded where they lie packed: on the device, or in page-locked memory of the
host, which the device reads over the bus (see `weights.prepare_table`)."""

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import Weight
from pydflash.kernels.triton import decode
from pydflash.kernels.triton.weights import packed_of

Tensor = torch.Tensor

_F16 = tl.constexpr(decode.F16)
_FINE = tl.constexpr(decode.NIBBLE_FINE)
_FIVE = tl.constexpr(decode.FIVE)
_SIX = tl.constexpr(decode.SIX)
_BYTE = tl.constexpr(decode.BYTE)
_LOW_POWER = tl.constexpr(decode.LOW_POWER)
_HIGH_POWER = tl.constexpr(decode.HIGH_POWER)


BLOCK_U = 8
"""Units of a program. Its words are then 512 bytes in a row: over a bus it is requests that count."""


@triton.jit
def _column(pairs, o_g, g: tl.constexpr):
    """Column g of int32 [n, groups]."""
    return tl.sum(tl.where(o_g == g, pairs, 0), 1)


@triton.jit
def _half_of(word, which: tl.constexpr):
    """The first or second f16 of a packed pair, as f32."""
    bits = (word >> (16 * which)) & 0xFFFF
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def embed_kernel(
    tokens_ptr, words_ptr, high_ptr, scales_ptr, row_scale_ptr, out_ptr, K, units,
    KIND: tl.constexpr, TILE: tl.constexpr, BLOCK_U: tl.constexpr,
):  # fmt: skip
    """out f32 [T, K]. Grid (T, blocks of units)."""
    i_t = tl.program_id(0)
    o_u = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
    is_u = (o_u < units)[:, None]
    row = tl.load(tokens_ptr + i_t)
    r = row % TILE
    unit = ((row // TILE).to(tl.int64) * units + o_u)[:, None]
    row_scale = tl.load(row_scale_ptr + row)
    out = out_ptr + i_t.to(tl.int64) * K
    if KIND == _F16:
        o_k = tl.arange(0, 128)[None, :]
        values = tl.load(words_ptr + unit * (128 * TILE) + r * 128 + o_k, mask=is_u, other=0.0)
        k = o_u[:, None] * 128 + o_k
        tl.store(out + k, values.to(tl.float32) * row_scale, mask=is_u & (k < K))
    else:
        LOW: tl.constexpr = 2.0**-_LOW_POWER
        HIGH: tl.constexpr = 2.0**-_HIGH_POWER
        BYTES: tl.constexpr = KIND == _BYTE
        SIXES: tl.constexpr = KIND == _SIX or KIND == _FIVE
        HALVES: tl.constexpr = 2 if BYTES else 1
        GROUPS: tl.constexpr = decode.scale_words(KIND)
        o_c, o_g = tl.arange(0, 16)[None, :], tl.arange(0, GROUPS)[None, :]
        pairs = tl.load(scales_ptr + unit * (GROUPS * TILE) + r * GROUPS + o_g, mask=is_u, other=0)
        at = r * 16 + o_c
        if SIXES:
            more = tl.load(high_ptr + unit * (16 * TILE) + at, mask=is_u, other=0).to(tl.int32)
        for half in tl.static_range(HALVES):
            words = words_ptr + unit * (HALVES * 16 * TILE) + half * (16 * TILE)
            word = tl.load(words + at, mask=is_u, other=0)
            for j in tl.static_range(8 // HALVES):
                if BYTES:
                    scale = _half_of(_column(pairs, o_g, half), j // 2)
                    code = ((word >> (8 * j)) & 255) - 128
                    values = code.to(tl.float32) * (scale * LOW)[:, None]
                else:
                    code = (word >> decode.nibble_at(j)) & 15
                    if SIXES:
                        code |= ((more >> (2 * j)) & 3) << 4
                    power = HIGH if j // 2 % 2 else LOW
                    pair = _column(pairs, o_g, j if KIND == _FINE else j // 2)
                    if KIND == _SIX:
                        scale = _half_of(pair, j % 2) * power
                        values = (code - 32).to(tl.float32) * scale[:, None]
                    else:
                        scale, less = _half_of(pair, 0) * power, _half_of(pair, 1)
                        values = code.to(tl.float32) * scale[:, None] + less[:, None]
                k = o_u[:, None] * 128 + half * 64 + j * 16 + o_c
                tl.store(out + k, values * row_scale, mask=is_u & (k < K))


def embed(weight: Weight, tokens: Tensor) -> Tensor:
    """Rows of an (unmerged) weight. tokens int32 [T] -> f32 [T, K]."""
    packed = packed_of(weight)
    planes = packed.segments[0].planes
    out = torch.empty(len(tokens), weight.cols, dtype=torch.float32, device=tokens.device)
    if len(tokens):
        embed_kernel[(len(tokens), triton.cdiv(packed.units, BLOCK_U))](
            tokens,
            planes.words,
            planes.words if planes.high is None else planes.high,
            planes.words if planes.scales is None else planes.scales,
            packed.row_scale,
            out,
            weight.cols,
            packed.units,
            KIND=planes.kind,
            TILE=planes.tile,
            BLOCK_U=BLOCK_U,
            num_warps=1,
        )
    return out
