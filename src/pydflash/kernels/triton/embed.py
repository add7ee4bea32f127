"""Rows of an embedding table, decoded where they lie packed."""

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import Weight
from pydflash.kernels.triton import decode
from pydflash.kernels.triton.pack import UNIT
from pydflash.kernels.triton.weights import packed_of

Tensor = torch.Tensor

_F16 = tl.constexpr(decode.F16)
_FINE = tl.constexpr(decode.NIBBLE_FINE)
_FIVE = tl.constexpr(decode.FIVE)
_SIX = tl.constexpr(decode.SIX)
_BYTE = tl.constexpr(decode.BYTE)
_LOW_POWER = tl.constexpr(decode.LOW_POWER)
_HIGH_POWER = tl.constexpr(decode.HIGH_POWER)


@triton.jit
def _half_of(scales_ptr, at, o_half):
    """The first or second f16 of the packed pair at `at`, as f32."""
    word = tl.load(scales_ptr + at)
    return (
        ((word >> (16 * o_half)) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    )


@triton.jit
def decode_unit(words_ptr, high_ptr, scales_ptr, row, unit, units, KIND: tl.constexpr):
    """f32 [128]: one row's values in a unit, before the row's scale."""
    LOW: tl.constexpr = 2.0**-_LOW_POWER
    HIGH: tl.constexpr = 2.0**-_HIGH_POWER
    k = tl.arange(0, 128)
    block = (row // 64).to(tl.int64) * units + unit
    r = row % 64
    if KIND == _F16:
        values = tl.load(words_ptr + block * 8192 + r * 128 + k).to(tl.float32)
    elif KIND == _BYTE:
        half, j, c = k // 64, k % 64 // 16, k % 16
        word = tl.load(words_ptr + block * 2048 + half * 1024 + r * 16 + c)
        code = ((word >> (8 * j)) & 255).to(tl.float32) - 128.0
        values = code * _half_of(scales_ptr, block * 128 + r * 2 + half, j // 2) * LOW
    else:
        j, c = k // 16, k % 16
        at = block * 1024 + r * 16 + c
        is_high = j // 2 % 2
        code = (tl.load(words_ptr + at) >> (j // 4 * 16 + j % 2 * 8 + is_high * 4)) & 15
        if KIND == _SIX or KIND == _FIVE:
            code += ((tl.load(high_ptr + at).to(tl.int32) >> (2 * j)) & 3) << 4
        power = tl.where(is_high != 0, HIGH, LOW)
        if KIND == _SIX:
            scale = _half_of(scales_ptr, block * 256 + r * 4 + j // 2, j % 2)
            values = (code - 32).to(tl.float32) * (scale * power)
        else:
            s = block * 512 + r * 8 + j if KIND == _FINE else block * 256 + r * 4 + j // 2
            scale, less = _half_of(scales_ptr, s, 0), _half_of(scales_ptr, s, 1)
            values = code.to(tl.float32) * (scale * power) + less
    return values


@triton.jit
def embed_kernel(
    tokens_ptr, words_ptr, high_ptr, scales_ptr, row_scale_ptr, out_ptr, K, units,
    KIND: tl.constexpr,
):  # fmt: skip
    """out f32 [T, K]. Grid (T, units)."""
    i_t, unit = tl.program_id(0), tl.program_id(1)
    row = tl.load(tokens_ptr + i_t)
    values = decode_unit(words_ptr, high_ptr, scales_ptr, row, unit, units, KIND)
    k = unit * 128 + tl.arange(0, 128)
    values *= tl.load(row_scale_ptr + row)
    tl.store(out_ptr + i_t.to(tl.int64) * K + k, values, mask=k < K)


def embed(weight: Weight, tokens: Tensor) -> Tensor:
    """Rows of an (unmerged) weight. tokens int32 [T] -> f32 [T, K]."""
    packed = packed_of(weight)
    planes = packed.segments[0].planes
    out = torch.empty(len(tokens), weight.cols, dtype=torch.float32, device=tokens.device)
    if len(tokens):
        embed_kernel[(len(tokens), packed.width // UNIT)](
            tokens,
            planes.words,
            planes.words if planes.high is None else planes.high,
            planes.words if planes.scales is None else planes.scales,
            packed.row_scale,
            out,
            weight.cols,
            packed.units,
            KIND=planes.kind,
            num_warps=1,
        )
    return out
