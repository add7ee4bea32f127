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
order `NIBBLE_ORDER`. Codes of FIVE are decoded as those of SIX are: it costs a bit of memory and saves a
tenth of the time. A table that is only looked up in has tiles of one row instead: what a row needs then lies
side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

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
    scale_words,
)
from pydflash.kernels.upload import push
from pydflash.quant.formats import QuantFormat
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor

TILE = 64
UNIT = 128
_SLICE = 1 << 23  # elements packed at a time, so that intermediates stay below 128 MiB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planes:
    """One packed tensor: `kind`, rows [N], rows of a tile, and the planes described above, tiles first."""

    kind: int
    rows: int
    tile: int = TILE
    words: Tensor
    high: Tensor | None
    scales: Tensor | None
    row_scale: Tensor  # f32 [N]

    @property
    def nbytes(self) -> int:
        held = (self.words, self.high, self.scales, self.row_scale)
        return sum(t.numel() * t.element_size() for t in held if t is not None)


def pack(
    parts: Sequence[QuantTensor],
    device: torch.device,
    *,
    tile: int = TILE,
    place: Callable[[int], Tensor] | None = None,
) -> Planes:
    """Tensors of one format, one below the other, packed on `device`; their data may be anywhere.

    Rows and inputs are padded with zeros. `place`: where so many bytes of planes go, uint8 [n]; by default
    on the device. `row_scale` is always there.
    """
    first = parts[0]
    kind = _kind(first.format)
    rows, units = sum(_num_rows(p) for p in parts), -(-first.cols // UNIT)
    shapes = _shapes(kind, -(-rows // tile), units, tile)
    size = sum(_nbytes(shape) for shape in shapes)
    held = place(size) if place else torch.empty(size, dtype=torch.uint8, device=device)
    planes = [None if shape is None else _cut(held, shapes, i) for i, shape in enumerate(shapes)]
    words, high, scales = planes
    assert words is not None
    row_scale = torch.empty(rows, device=device)
    step = max(TILE, _SLICE // first.cols // TILE * TILE)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        own = replace(
            first, data=_rows(parts, start, stop, device), shape=(stop - start, first.cols)
        )
        found, exponent = _pack_slice(kind, own, units, tile)
        row_scale[start:stop] = _power(-exponent)
        tiles = slice(start // tile, -(-stop // tile))
        for plane, piece in zip(planes, found, strict=True):
            if plane is not None and piece is not None:
                plane[tiles].copy_(piece, non_blocking=True)
    return Planes(
        kind=kind, rows=rows, tile=tile, words=words, high=high, scales=scales, row_scale=row_scale
    )


def held_bytes(form: QuantFormat, rows: int, cols: int, tile: int = TILE) -> int:
    """Of a matrix's planes."""
    shapes = _shapes(_kind(form), -(-rows // tile), -(-cols // UNIT), tile)
    return sum(_nbytes(shape) for shape in shapes) + 4 * rows


_Codes = tuple[Tensor, Tensor, Tensor | None]
"""codes uint8 [n, elements], scales f32 [n, groups], minima f32 [n, groups] or None, of n blocks."""

_Shape = tuple[torch.dtype, tuple[int, ...]]


def _kind(form: QuantFormat) -> int:
    return _CODES[form.name][0] if form.name in _CODES else F16


def _shapes(kind: int, tiles: int, units: int, tile: int) -> list[_Shape | None]:
    """Of words, high and scales."""
    if kind == F16:
        return [(torch.float16, (tiles, units, tile, UNIT)), None, None]
    halves = 2 if kind == BYTE else 1
    return [
        (torch.int32, (tiles, units, halves, tile, 16)),
        (torch.int16, (tiles, units, tile, 16)) if kind in (FIVE, SIX) else None,
        (torch.int32, (tiles, units, tile, scale_words(kind))),
    ]


def _nbytes(shape: _Shape | None) -> int:
    return 0 if shape is None else shape[0].itemsize * prod(shape[1])


def _cut(held: Tensor, shapes: list[_Shape | None], i: int) -> Tensor:
    """Plane i of the bytes that hold all: one allocation, as each may be rounded up by a megabyte or two."""
    shape = shapes[i]
    assert shape is not None
    at = sum(_nbytes(s) for s in shapes[:i])
    return held[at : at + _nbytes(shape)].view(shape[0]).view(shape[1])


def _num_rows(tensor: QuantTensor) -> int:
    return tensor.data.numel() // tensor.data.shape[-1]


def _rows(parts: Sequence[QuantTensor], start: int, stop: int, device: torch.device) -> Tensor:
    """Rows start..stop of the tensors below one another, uint8 [n, row_bytes] on the device."""
    found, first = [], 0
    for part in parts:
        data = part.data.reshape(-1, part.data.shape[-1])
        own = data[max(0, start - first) : max(0, stop - first)]
        if len(own):
            found.append(push(own, device))
        first += len(data)
    return found[0] if len(found) == 1 else torch.cat(found)


def _power(exponent: Tensor) -> Tensor:
    """2 ** exponent, f32, of whole numbers -126 to 126: exact, which no device's exp2 need be."""
    return ((exponent.int() + 127) << 23).view(torch.float32)


def _exponents(scales: Tensor, minima: Tensor | None) -> Tensor:
    """Of each row [n, 1], the power of two that brings its largest scale, which codes multiply up to 255
    times, between 2^-10 and 2^-9: subnormal codes want it 2^24 times that."""
    largest = scales.abs().amax(1, keepdim=True)
    if minima is not None:
        largest = torch.maximum(largest, minima.abs().amax(1, keepdim=True) / 32)
    return torch.where(largest > 0, -9 - torch.frexp(largest).exponent, 0).clamp(-126, 126)


def _powers(kind: int, groups: int, device: torch.device) -> Tensor:
    """What the scale of each group of a unit is multiplied by for its codes' places."""
    powers = torch.full((8,), 2.0**LOW_POWER)
    if kind != BYTE:
        powers[list(HIGH_PIECES)] = 2.0**HIGH_POWER
    return powers[:: 8 // groups].to(device)


def _pack_slice(
    kind: int, own: QuantTensor, units: int, tile: int
) -> tuple[list[Tensor | None], Tensor]:
    """Words, high and scales of some rows, and the power of two that each row was multiplied by, [rows]."""
    n, cols = own.shape
    tiles = -(-n // tile)
    if kind == F16:
        return _pack_halves(own, units, tile)
    codes, scales, minima = _CODES[own.format.name][1](own.data.reshape(-1, own.format.block_bytes))
    # A padded code counts for nothing: its scale is 0.
    codes = _padded(codes.view(n, cols), tiles * tile, units * UNIT)
    scales = scales.view(n, -1)
    minima = None if minima is None else minima.view(n, -1)
    group = cols // scales.shape[1]
    exponents = _exponents(scales, minima)
    powers = _powers(kind, UNIT // group, own.data.device)
    shape = (tiles, tile, units, UNIT // group)

    def grouped(values: Tensor, powers: Tensor | float) -> Tensor:
        values = _padded(values * _power(exponents), tiles * tile, units * UNIT // group)
        return (values.view(shape) * powers).half().transpose(1, 2)  # [tiles, units, tile, groups]

    s = grouped(scales, powers)
    if minima is not None:
        packed = torch.stack((s, grouped(minima, -1.0)), -1)
    else:
        packed = torch.stack((s[..., 0::2], s[..., 1::2]), -1)
    packed = packed.contiguous().view(torch.int32).squeeze(-1)
    exponent = exponents[:, 0]
    pieces = 4 if kind == BYTE else 8
    by_piece = codes.view(tiles, tile, units, UNIT // (16 * pieces), pieces, 16)
    by_piece = by_piece.permute(0, 2, 3, 1, 5, 4)  # [tiles, units, halves, tile, 16, pieces]
    if kind == BYTE:
        return [by_piece.contiguous().view(torch.int32).squeeze(-1), None, packed], exponent
    low = (by_piece & 0xF)[..., list(NIBBLE_ORDER)]
    words = (low[..., 0::2] | (low[..., 1::2] << 4)).contiguous().view(torch.int32).squeeze(-1)
    high: Tensor | None = None
    if kind in (FIVE, SIX):
        top = by_piece.squeeze(2) >> 4
        both = torch.stack((_gathered(top[..., :4], 2), _gathered(top[..., 4:], 2)), -1)
        high = both.view(torch.int16).squeeze(-1)
    return [words, high, packed], exponent


def _gathered(fields: Tensor, width: int) -> Tensor:
    """Small numbers of `width` bits, uint8 [..., k], into one byte each [...]."""
    out = fields[..., 0].clone(memory_format=torch.contiguous_format)
    for j in range(1, fields.shape[-1]):
        out |= fields[..., j] << (width * j)
    return out.view(torch.int8)


def _pack_halves(own: QuantTensor, units: int, tile: int) -> tuple[list[Tensor | None], Tensor]:
    """Anything else, as f16 with a power of two for each row (BF16 and F32 reach further than f16)."""
    values = dequantize(own)
    largest = values.abs().amax(1)
    exponent = torch.where(largest > 0, -torch.frexp(largest).exponent, 0)
    exponent = exponent.clamp(-126, 126)  # beyond, its power is no f32
    tiles = -(-len(values) // tile)
    scaled = (values * _power(exponent)[:, None]).half()
    scaled = _padded(scaled, tiles * tile, units * UNIT).view(tiles, tile, units, UNIT)
    return [scaled.transpose(1, 2), None, None], exponent


def _padded(values: Tensor, rows: int, cols: int) -> Tensor:
    n, k = values.shape
    return torch.nn.functional.pad(values, (0, cols - k, 0, rows - n))


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
