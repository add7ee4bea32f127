"""Packed weights: GGUF rows repacked at load into panels of sixteen rows (see src/layout.h)."""

import ctypes
from collections.abc import Sequence
from typing import cast

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.cpu.records import Segment, WeightRecord
from pydflash.kernels.ops import Weight
from pydflash.quant.formats import QuantFormat
from pydflash.quant.tensor import QuantTensor, ShapeError

FORMATS = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
)
"""Formats in the order of `enum Format` in src/layout.h."""

LANES = 16


def held_bytes(form: QuantFormat, rows: int, cols: int) -> int:
    """Of a matrix in panels."""
    return -(-rows // LANES) * LANES * form.row_bytes(cols)


class Packed:
    """A weight's panels and the C record over them. Holds every tensor the record points into."""

    __slots__ = ("address", "bias", "data", "halves_apart", "record", "scale", "segments")

    def __init__(
        self, parts: Sequence[QuantTensor], data: list[torch.Tensor], bias: torch.Tensor | None
    ) -> None:
        self.data = data
        self.bias = bias
        self.scale: torch.Tensor | None = None
        self.segments = (Segment * len(parts))()
        row0 = panels = 0
        for segment, part, packed in zip(self.segments, parts, data, strict=True):
            segment.data = packed.data_ptr()
            segment.format = FORMATS.index(part.format.name)
            segment.rows = part.num_rows
            segment.row0 = row0
            segment.panels = -(-part.num_rows // LANES)
            segment.panel_bytes = packed.numel() // max(segment.panels, 1)
            row0 += part.num_rows
            panels += segment.panels
        self.record = WeightRecord(
            segments=self.segments,
            bias=None if bias is None else bias.data_ptr(),
            count=len(parts),
            rows=row0,
            cols=parts[0].cols,
            panels=panels,
        )
        self.address = ctypes.addressof(self.record)
        self.halves_apart = _halves_apart([part.num_rows for part in parts])

    def set_scale(self, scale: torch.Tensor | None) -> None:
        """Multiply every product by `scale` f32 [N] from now on."""
        self.scale = scale
        if scale is not None and (
            scale.shape != (self.record.rows,)
            or scale.dtype != torch.float32
            or not scale.is_contiguous()
        ):
            raise ShapeError(
                f"a scale of {list(scale.shape)} {scale.dtype} for {self.record.rows} rows; "
                "it must be contiguous f32, one number a row"
            )
        self.record.scale = None if scale is None else scale.data_ptr()


def pack(
    library: ctypes.CDLL, parts: Sequence[QuantTensor], bias: torch.Tensor | None, threads: int
) -> Weight:
    """Repack `parts` [N_i, K] (any mixture of formats) as one weight [sum N_i, K]; bias f32 [sum N_i]."""
    for part in parts:
        if part.format.name not in FORMATS:
            raise UnsupportedError(
                f"{part.name} is {part.format.name}; the CPU kernels have no product for it: "
                "run with --ops ref or requantise"
            )
        if len(part.shape) != 2 or part.cols != parts[0].cols:
            raise ShapeError(
                f"{part.name}: {list(part.shape)} cannot be multiplied beside {parts[0].name} "
                f"{list(parts[0].shape)}; both must be matrices of as many columns"
            )
    if bias is not None:
        bias = bias.to(torch.float32).contiguous()
    packed = Packed(parts, [_panels(library, part, threads) for part in parts], bias)
    return Weight(
        rows=packed.record.rows,
        cols=packed.record.cols,
        parts=tuple(part.num_rows for part in parts),
        formats=tuple(part.format.name for part in parts),
        nbytes=sum(data.numel() for data in packed.data) + (0 if bias is None else bias.nbytes),
        packed=packed,
        bias=bias,
    )


def packed_of(weight: Weight) -> Packed:
    """The panels of a weight, its present scale told to the C side."""
    packed = cast("Packed", weight.packed)
    if packed.scale is not weight.scale:
        packed.set_scale(weight.scale)
    return packed


def _panels(library: ctypes.CDLL, part: QuantTensor, threads: int) -> torch.Tensor:
    """uint8 [panels * 16 * row bytes]."""
    source = part.data if part.data.stride(-1) == 1 else part.data.contiguous()
    panels = -(-part.num_rows // LANES)
    out = torch.empty(panels * LANES * part.format.row_bytes(part.cols), dtype=torch.uint8)
    library.pf_pack(
        FORMATS.index(part.format.name),
        source.data_ptr(),
        source.stride(0),
        part.num_rows,
        part.cols // part.format.block,
        out.data_ptr(),
        threads,
    )
    return out


def _halves_apart(parts: list[int]) -> bool:
    """True if the upper half of the rows starts a panel, and no panel inside a half is short."""
    half, row = sum(parts) // 2, 0
    for count in parts:
        if row < half < row + count and (half - row) % LANES:
            return False
        row += count
        if row not in (half, 2 * half) and count % LANES:
            return False
    return True
