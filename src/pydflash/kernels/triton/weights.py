"""Weights on a GPU: merged tensors as segments of one packed kind each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from pydflash.kernels.ops import Weight
from pydflash.kernels.triton.pack import TILE, UNIT, Planes, pack
from pydflash.quant.tensor import QuantTensor, cat_rows

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """Rows row0 .. row0 + rows of a merged weight, packed as `planes` (see `pack`)."""

    row0: int
    planes: Planes

    @property
    def tiles(self) -> int:
        return -(-self.planes.rows // TILE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """`units` of 128 inputs make K, padded. The reduction over them is cut into `splits` equal ranges,
    a number that depends on the weight's shape alone: the order of a sum never depends on the step."""

    segments: tuple[Segment, ...]
    row_scale: Tensor  # f32 [N]
    units: int
    splits: int

    @property
    def width(self) -> int:
        """K, padded to whole units."""
        return self.units * UNIT


def prepare(parts: Sequence[QuantTensor], device: torch.device, bias: Tensor | None) -> Weight:
    """Pack `parts` on `device`; their data may be anywhere and can be dropped afterwards."""
    segments: list[Segment] = []
    rows = nbytes = 0
    for run in _runs(parts):
        planes = pack(run.to(device))
        segments.append(Segment(row0=rows, planes=planes))
        rows += planes.rows
        nbytes += planes.nbytes
    units = -(-parts[0].cols // UNIT)
    packed = Packed(
        segments=tuple(segments),
        row_scale=torch.cat([s.planes.row_scale for s in segments]),
        units=units,
        splits=_splits(sum(s.tiles for s in segments), units),
    )
    return Weight(
        rows=rows,
        cols=parts[0].cols,
        parts=tuple(p.num_rows for p in parts),
        formats=tuple(p.format.name for p in parts),
        nbytes=nbytes,
        packed=packed,
        bias=bias,
    )


def packed_of(weight: Weight) -> Packed:
    return cast(Packed, weight.packed)


def _runs(parts: Sequence[QuantTensor]) -> list[QuantTensor]:
    """Neighbours of one format merged."""
    runs: list[list[QuantTensor]] = []
    for part in parts:
        if runs and runs[-1][0].format is part.format:
            runs[-1].append(part)
        else:
            runs.append([part])
    return [run[0] if len(run) == 1 else cat_rows(run) for run in runs]


def _splits(tiles: int, units: int) -> int:
    """Ranges of K, so that there are some thousand programs of one tile and a range is 4 units at least."""
    wanted = max(1, -(-512 // tiles))
    splits = max(1, min(wanted, units // 4))
    # Ranges of equal length, where that costs no more than half as many again.
    for more in range(splits, splits + splits // 2 + 1):
        if units % more == 0:
            return more
    return splits
