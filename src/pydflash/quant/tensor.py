"""QuantTensor: a matrix (or a stack of them) exactly as the file stores it.

Bytes, a format and a logical shape; never a dequantised copy. Splits are byte-wise.
"""

from dataclasses import dataclass

import torch

from pydflash.errors import CheckpointError
from pydflash.quant.formats import QuantFormat


class ShapeError(CheckpointError):
    """A split that the block layout cannot express."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuantTensor:
    """Packed rows. `data` is uint8 [..., rows, row_bytes]; `shape` is the logical shape [..., rows, cols].

    A vector has shape [cols] and data [row_bytes]. Blocks run along cols.
    """

    name: str
    data: torch.Tensor
    format: QuantFormat
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        want = (*self.shape[:-1], self.format.row_bytes(self.shape[-1]))
        if self.data.dtype != torch.uint8 or tuple(self.data.shape) != want:
            raise ShapeError(
                f"{self.name}: {self.format.name} {list(self.shape)} needs uint8 {list(want)}, "
                f"got {self.data.dtype} {list(self.data.shape)}"
            )

    @property
    def nbytes(self) -> int:
        return self.data.numel()

    @property
    def cols(self) -> int:
        return self.shape[-1]

    @property
    def num_rows(self) -> int:
        return self.shape[-2] if len(self.shape) > 1 else 1

    def rows(self, start: int, stop: int) -> "QuantTensor":
        """Rows start..stop as a view (column-parallel split). Shape [..., stop - start, cols]."""
        if not 0 <= start <= stop <= self.num_rows:
            raise ShapeError(f"{self.name}: rows {start}..{stop} of {self.num_rows}")
        shape = (*self.shape[:-2], stop - start, self.shape[-1])
        data = self.data[..., start:stop, :]
        return QuantTensor(name=self.name, data=data, format=self.format, shape=shape)

    def split_cols(self, parts: int) -> list["QuantTensor"]:
        """`parts` equal pieces along cols; legal only on block boundaries."""
        cols = self.cols // parts
        if cols * parts != self.cols or cols % self.format.block:
            raise ShapeError(
                f"{self.name}: {self.cols} columns of {self.format.name} (blocks of "
                f"{self.format.block}) do not split into {parts} equal parts"
            )
        width = self.format.row_bytes(cols)
        shape = (*self.shape[:-1], cols)
        return [
            QuantTensor(
                name=self.name,
                data=self.data[..., i * width : (i + 1) * width],
                format=self.format,
                shape=shape,
            )
            for i in range(parts)
        ]

    def to(self, device: torch.device | str) -> "QuantTensor":
        return QuantTensor(
            name=self.name, data=self.data.to(device), format=self.format, shape=self.shape
        )
