"""Pack: a GGUF tensor's codes and scales into tiles of 64 rows that the product kernels stream.

The codes are the file's, or the levels they stand for; the scales are its products, rounded to f16 after a
power of two for each row that keeps them away from f16's edges (undone by `row_scale`), times the one that
codes read as subnormal f16 want (`decode`). A unit is 128 inputs:

kind          words of a unit and tile     beside them                scales int32 (two f16 each)
NIBBLE        int32 [64, 16]                                          [64, 4] (scale, -minimum) by 32 inputs
NIBBLE_FINE   int32 [64, 16]                                          [64, 8] (scale, -minimum) by 16
FIVE          int32 [64, 16]               int16 [64, 16] high pairs  [64, 4] (scale, -minimum) by 32 inputs
SIX           int32 [64, 16]               int16 [64, 16] high pairs  [64, 4] scales of 16 and the next 16
BYTE          int32 [2, 64, 16]                                       [64, 2] scales of 32 and the next 32
F16           f16 [64, 128]

Column c of a word row holds input features 16 j + c of the unit (of each half, for BYTE), nibbles in the
order `NIBBLE_ORDER`. FIVE is decoded as SIX is: it costs a bit of memory and saves a tenth of the time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from pydflash.kernels.ref.quant import dequantize
from pydflash.kernels.ref.quant_bits import bits, fields, half, words16
from pydflash.kernels.ref.quant_plain import NONLINEAR4, nibbles
from pydflash.kernels.ref.quant_super import six_bit_pairs
from pydflash.kernels.triton.decode import (
    BYTE,
    F16,
    FIVE,
    HIGH_PIECES,
    HIGH_POWER,
    LOW_POWER,
    NIBBLE,
    NIBBLE_FINE,
    NIBBLE_ORDER,
    SIX,
)
from pydflash.quant.formats import QuantFormat
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor

TILE = 64
UNIT = 128
_SLICE = 1 << 24  # elements packed at a time, so that intermediates stay at hundreds of megabytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planes:
    """One packed tensor: `kind`, rows [N], and the planes described above, tiles first."""

    kind: int
    rows: int
    words: Tensor
    high: Tensor | None
    scales: Tensor | None
    row_scale: Tensor  # f32 [N]

    @property
    def nbytes(self) -> int:
        held = (self.words, self.high, self.scales, self.row_scale)
        return sum(t.numel() * t.element_size() for t in held if t is not None)


def pack(tensor: QuantTensor) -> Planes:
    """`tensor`'s data on the device where the planes are wanted. Rows and inputs are padded with zeros."""
    name = tensor.format.name
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    units = -(-tensor.cols // UNIT)
    if name not in _CODES:
        return _pack_halves(tensor, units)
    kind, codes_of = _CODES[name]
    step = max(TILE, _SLICE // tensor.cols // TILE * TILE)
    pieces = [
        _pack_slice(kind, codes_of, rows[i : i + step], tensor, units)
        for i in range(0, len(rows), step)
    ]
    words, high, scales, row_scale = (_cat(parts) for parts in zip(*pieces, strict=True))
    assert words is not None
    assert row_scale is not None
    return Planes(
        kind=kind, rows=len(rows), words=words, high=high, scales=scales, row_scale=row_scale
    )


def held_bytes(form: QuantFormat, rows: int, cols: int) -> int:
    """Of a matrix's planes."""
    kind = _CODES[form.name][0] if form.name in _CODES else F16
    words = 16384 if kind == F16 else 8192 if kind == BYTE else 4096
    high = 2048 if kind in (FIVE, SIX) else 0
    scales = {F16: 0, BYTE: 512, NIBBLE_FINE: 2048}.get(kind, 1024)
    return -(-rows // TILE) * -(-cols // UNIT) * (words + high + scales) + 4 * rows


_Codes = tuple[Tensor, Tensor, Tensor | None]
"""codes uint8 [n, elements], scales f32 [n, groups], minima f32 [n, groups] or None, of n blocks."""


def _exponents(scales: Tensor, minima: Tensor | None) -> Tensor:
    """Of each row [n, 1], the power of two that brings its largest scale, which codes multiply up to 255
    times, between 2^-10 and 2^-9: subnormal codes want it 2^24 times that."""
    largest = scales.abs().amax(1, keepdim=True)
    if minima is not None:
        largest = torch.maximum(largest, minima.abs().amax(1, keepdim=True) / 32)
    exponents = torch.where(largest > 0, -9 - torch.frexp(largest).exponent, 0)
    return exponents.clamp(-126, 126).float()  # beyond, its power is no f32


def _powers(kind: int, groups: int, device: torch.device) -> Tensor:
    """What the scale of each group of a unit is multiplied by for its codes' places."""
    powers = torch.full((8,), 2.0**LOW_POWER)
    if kind != BYTE:
        powers[list(HIGH_PIECES)] = 2.0**HIGH_POWER
    return powers[:: 8 // groups].to(device)


def _pack_slice(
    kind: int,
    codes_of: Callable[[Tensor], _Codes],
    rows: Tensor,
    tensor: QuantTensor,
    units: int,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    n, cols = len(rows), tensor.cols
    codes, scales, minima = codes_of(rows.reshape(-1, tensor.format.block_bytes))
    tiles = -(-n // TILE)
    # A padded code counts for nothing: its scale is 0.
    codes = _padded(codes.view(n, cols), tiles * TILE, units * UNIT)
    scales = scales.view(n, -1)
    minima = None if minima is None else minima.view(n, -1)
    group = cols // scales.shape[1]
    exponents = _exponents(scales, minima)
    powers = _powers(kind, UNIT // group, rows.device)

    def grouped(values: Tensor, powers: Tensor | float) -> Tensor:
        values = _padded(values * torch.exp2(exponents), tiles * TILE, units * UNIT // group)
        return (values.view(shape) * powers).half().transpose(1, 2)  # [tiles, units, 64, groups]

    shape = (tiles, TILE, units, UNIT // group)
    s = grouped(scales, powers)
    if minima is not None:
        packed = torch.stack((s, grouped(minima, -1.0)), -1)
    else:
        packed = torch.stack((s[..., 0::2], s[..., 1::2]), -1)
    packed = packed.contiguous().view(torch.int32).squeeze(-1)
    row_scale = torch.exp2(-exponents[:, 0])
    pieces = 4 if kind == BYTE else 8
    by_piece = codes.view(tiles, TILE, units, UNIT // (16 * pieces), pieces, 16)
    by_piece = by_piece.permute(0, 2, 3, 1, 5, 4)  # [tiles, units, halves, 64, 16, pieces]
    if kind == BYTE:
        return by_piece.contiguous().view(torch.int32).squeeze(-1), None, packed, row_scale
    low = (by_piece & 0xF)[..., list(NIBBLE_ORDER)]
    words = (low[..., 0::2] | (low[..., 1::2] << 4)).contiguous().view(torch.int32).squeeze(-1)
    high: Tensor | None = None
    if kind in (FIVE, SIX):
        top = by_piece >> 4
        both = torch.stack((_gathered(top[..., :4], 2), _gathered(top[..., 4:], 2)), -1)
        high = both.view(torch.int16).squeeze(-1)
    return words, high, packed, row_scale


def _gathered(fields: Tensor, width: int) -> Tensor:
    """Small numbers of `width` bits, uint8 [..., k], into one byte each [...]."""
    out = fields[..., 0].clone(memory_format=torch.contiguous_format)
    for j in range(1, fields.shape[-1]):
        out |= fields[..., j] << (width * j)
    return out.view(torch.int8)


def _pack_halves(tensor: QuantTensor, units: int) -> Planes:
    """Anything else, as f16 with a power of two for each row (BF16 and F32 reach further than f16)."""
    n, cols = tensor.data.numel() // tensor.data.shape[-1], tensor.cols
    rows = tensor.data.reshape(n, -1)
    step = max(TILE, _SLICE // cols // TILE * TILE)
    words, row_scales = [], []
    for i in range(0, n, step):
        own = rows[i : i + step]
        values = dequantize(replace(tensor, data=own, shape=(len(own), cols)))
        largest = values.abs().amax(1)
        exponent = torch.where(largest > 0, -torch.frexp(largest).exponent, 0)
        exponent = exponent.clamp(-126, 126).float()  # beyond, its power is no f32
        tiles = -(-len(own) // TILE)
        scaled = (values * torch.exp2(exponent)[:, None]).half()
        scaled = _padded(scaled, tiles * TILE, units * UNIT).view(tiles, TILE, units, UNIT)
        words.append(scaled.transpose(1, 2).contiguous())
        row_scales.append(torch.exp2(-exponent))
    return Planes(
        kind=F16,
        rows=n,
        words=torch.cat(words),
        high=None,
        scales=None,
        row_scale=torch.cat(row_scales),
    )


def _padded(values: Tensor, rows: int, cols: int) -> Tensor:
    n, k = values.shape
    return torch.nn.functional.pad(values, (0, cols - k, 0, rows - n))


def _cat(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    found = [p for p in parts if p is not None]
    return (found[0] if len(found) == 1 else torch.cat(found)) if found else None


def _q4_0(b: Tensor) -> _Codes:
    d = half(b[:, :2])
    return nibbles(b[:, 2:], 16), d, 8 * d


def _q4_1(b: Tensor) -> _Codes:
    d, low = half(b[:, :4]).chunk(2, dim=1)
    return nibbles(b[:, 4:], 16), d, -low


def _q5_0(b: Tensor) -> _Codes:
    d = half(b[:, :2])
    codes = nibbles(b[:, 6:], 16) | (bits(b[:, 2:6]) << 4)
    return codes, d, 16 * d


def _q5_1(b: Tensor) -> _Codes:
    d, low = half(b[:, :4]).chunk(2, dim=1)
    codes = nibbles(b[:, 8:], 16) | (bits(b[:, 4:8]) << 4)
    return codes, d, -low


def _q8_0(b: Tensor) -> _Codes:
    return b[:, 2:] ^ 0x80, half(b[:, :2]), None


def _iq4_nl(b: Tensor) -> _Codes:
    return _levels(nibbles(b[:, 2:], 16)), half(b[:, :2]), None


def _q2_k(b: Tensor) -> _Codes:
    d, dmin = half(b[:, 80:84]).chunk(2, dim=1)
    codes = fields(b[:, 16:80], (0, 2, 4, 6), 3, 32)
    return codes, d * (b[:, :16] & 0xF), dmin * (b[:, :16] >> 4)


def _q3_k(b: Tensor) -> _Codes:
    low, high = nibbles(b[:, 96:104], 8), fields(b[:, 104:108], (0, 2, 4, 6), 3, 4)
    scales = half(b[:, 108:110]) * ((low | (high << 4)).float() - 32)
    codes = fields(b[:, 32:96], (0, 2, 4, 6), 3, 32) | (fields(b[:, :32], range(8), 1, 32) << 2)
    return codes, scales, 4 * scales


def _q4_k(b: Tensor) -> _Codes:
    d, dmin = half(b[:, :4]).chunk(2, dim=1)
    scales, mins = six_bit_pairs(b[:, 4:16])
    return nibbles(b[:, 16:], 32), d * scales, dmin * mins


def _q5_k(b: Tensor) -> _Codes:
    d, dmin = half(b[:, :4]).chunk(2, dim=1)
    scales, mins = six_bit_pairs(b[:, 4:16])
    codes = nibbles(b[:, 48:], 32) | (fields(b[:, 16:48], range(8), 1, 32) << 4)
    return codes, d * scales, dmin * mins


def _q6_k(b: Tensor) -> _Codes:
    codes = nibbles(b[:, :128], 64) | (fields(b[:, 128:192], (0, 2, 4, 6), 3, 32) << 4)
    return codes, half(b[:, 208:210]) * b[:, 192:208].view(torch.int8), None


def _iq4_xs(b: Tensor) -> _Codes:
    high = (words16(b[:, 2:4]) >> torch.arange(0, 16, 2, device=b.device)) & 3
    low = fields(b[:, 4:8], (0, 4), 0xF, 1)
    scales = (low | (high << 4)).float() - 32
    return _levels(nibbles(b[:, 8:], 16)), half(b[:, :2]) * scales, None


def _levels(codes: Tensor) -> Tensor:
    """The nonlinear levels as bytes plus 128."""
    levels = torch.tensor(NONLINEAR4, dtype=torch.int16, device=codes.device) + 128
    return levels.to(torch.uint8)[codes.int()]


_CODES: dict[str, tuple[int, Callable[[Tensor], _Codes]]] = {
    "Q4_0": (NIBBLE, _q4_0),
    "Q4_1": (NIBBLE, _q4_1),
    "Q5_0": (FIVE, _q5_0),
    "Q5_1": (FIVE, _q5_1),
    "Q8_0": (BYTE, _q8_0),
    "IQ4_NL": (BYTE, _iq4_nl),
    "Q2_K": (NIBBLE_FINE, _q2_k),
    "Q3_K": (NIBBLE_FINE, _q3_k),
    "Q4_K": (NIBBLE, _q4_k),
    "Q5_K": (FIVE, _q5_k),
    "Q6_K": (SIX, _q6_k),
    "IQ4_XS": (BYTE, _iq4_xs),
}

FORMATS = frozenset(_CODES) | {"F16", "BF16", "F32"}
