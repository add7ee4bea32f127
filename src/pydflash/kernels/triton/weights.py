"""Weights on a GPU: merged tensors as segments of one packed kind each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch

from pydflash.kernels.ops import Weight
from pydflash.kernels.triton.pack import TILE, UNIT, Planes, pack
from pydflash.kernels.upload import page_locked
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """Rows row0 .. row0 + rows of a merged weight, packed as `planes` (see `pack`)."""

    row0: int
    planes: Planes

    @property
    def tiles(self) -> int:
        return -(-self.planes.rows // TILE)


MOST_RANGES = 396
"""Three programs for each multiprocessor of an H200; not read off the device, so that sums are everywhere
the same."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a weight's work is cut: rows of a block, and ranges. Part of the order of its sums, so chosen by
    the weight's shape alone."""

    block_n: int
    ranges: int


Launch = tuple[tuple[Segment, ...], int, int]
"""Up to two segments, the ranges that their work is cut into, and the work: blocks of rows times units."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """`units` of 128 inputs make K, padded. `slots`: partial sums of a row, at most."""

    segments: tuple[Segment, ...]
    row_scale: Tensor  # f32 [N]
    units: int
    cut: Cut
    launches: tuple[Launch, ...]
    slot_counts: Tensor  # int32 [N]
    slots: int

    @property
    def is_table(self) -> bool:
        """Can it only be looked up in?"""
        return any(s.planes.tile != TILE for s in self.segments)

    @property
    def width(self) -> int:
        """K, padded to whole units."""
        return self.units * UNIT


def prepare(parts: Sequence[QuantTensor], device: torch.device, bias: Tensor | None) -> Weight:
    """Pack `parts` on `device`; their data may be anywhere and can be dropped afterwards."""
    segments: list[Segment] = []
    rows = nbytes = 0
    for run in _runs(parts):
        planes = pack(run, device)
        segments.append(Segment(row0=rows, planes=planes))
        rows += planes.rows
        nbytes += planes.nbytes
    packed = assemble(segments, -(-parts[0].cols // UNIT))
    return Weight(
        rows=rows,
        cols=parts[0].cols,
        parts=tuple(p.num_rows for p in parts),
        formats=tuple(p.format.name for p in parts),
        nbytes=nbytes,
        packed=packed,
        bias=bias,
    )


def prepare_table(part: QuantTensor, device: torch.device) -> Weight:
    """`part` as `embed` alone reads it: in page-locked memory of the host, which a step takes a few rows of,
    so that a large vocabulary's table leaves the device to others. Raises MemoryError when there is none."""
    planes = pack([part], device, tile=1, place=lambda size: page_locked(size, device))
    return Weight(
        rows=planes.rows,
        cols=part.cols,
        parts=(planes.rows,),
        formats=(part.format.name,),
        nbytes=planes.nbytes,
        packed=assemble([Segment(row0=0, planes=planes)], -(-part.cols // UNIT)),
    )


def assemble(segments: Sequence[Segment], units: int, cut: Cut | None = None) -> Packed:
    """The record of packed segments, in order of rows, and how their work is cut."""
    cut = cut or cut_of(sum(s.tiles for s in segments), units)
    launches: list[Launch] = []
    counts: list[Tensor] = []
    for i in range(0, len(segments), 2):
        pieces = tuple(segments[i : i + 2])
        blocks = sum(-(-s.tiles * TILE // cut.block_n) for s in pieces)
        work = blocks * units
        ranges = min(cut.ranges, work)
        launches.append((pieces, ranges, work))
        # Range g begins at g * work // ranges; so many begin before a block ends and after it begins.
        block = torch.arange(blocks)
        first = ((block * units + 1) * ranges - 1) // work
        last = ((block + 1) * units * ranges - 1) // work
        by_block = (last - first + 1).int().repeat_interleave(cut.block_n)
        at = 0
        for s in pieces:
            counts.append(by_block[at : at + s.planes.rows])
            at += -(-s.tiles * TILE // cut.block_n) * cut.block_n
    slot_counts = torch.cat(counts)
    row_scale = torch.cat([s.planes.row_scale for s in segments])
    return Packed(
        segments=tuple(segments),
        row_scale=row_scale,
        units=units,
        cut=cut,
        launches=tuple(launches),
        slot_counts=slot_counts.to(row_scale.device),
        slots=int(slot_counts.max()),
    )


def cut_of(tiles: int, units: int) -> Cut:
    """The cut of a weight of so many tiles of 64 rows."""
    block_n = 64 if tiles < 2 else 128
    work = -(-tiles * TILE // block_n) * units
    # A range is four units or more: less, and filling the pipeline costs more than it saves.
    return Cut(block_n, max(1, min(MOST_RANGES, work // 4)))


def packed_of(weight: Weight) -> Packed:
    return cast("Packed", weight.packed)


def _runs(parts: Sequence[QuantTensor]) -> list[list[QuantTensor]]:
    """Neighbours of one format."""
    runs: list[list[QuantTensor]] = []
    for part in parts:
        if runs and runs[-1][0].format is part.format:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs
