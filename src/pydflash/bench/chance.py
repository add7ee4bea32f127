"""Chance: random tensors in any format, as fast as memory can be written.

Packing is what takes time. So a bank of properly packed random blocks is made once for every format and
width, and a matrix is stretches of it from random places on.
"""

from math import prod

import torch

from pydflash.checkpoint.files import TensorInfo
from pydflash.checkpoint.writer import TensorSource
from pydflash.quant.encode import encode
from pydflash.quant.formats import QuantFormat
from pydflash.quant.tensor import QuantTensor

Shape = tuple[int, ...]
_PACKED = 1024  # blocks that are really packed
_BANK = 1 << 16  # blocks that stretches are taken from, each drawn from those
_STRETCH = 1 << 14


class Chance:
    """One seed's tensors: the same calls in the same order give the same bytes."""

    def __init__(self, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)
        self._banks: dict[tuple[str, int], torch.Tensor] = {}

    def source(self, name: str, shape: Shape, format: QuantFormat) -> TensorSource:
        """A tensor for `write_gguf`: of one dimension and convolutions small values, else a matrix."""
        nbytes = prod(shape[:-1]) * format.row_bytes(shape[-1])
        info = TensorInfo(name=name, shape=shape, format=format, nbytes=nbytes, file=0, offset=0)
        is_small = len(shape) == 1 or "conv1d" in name
        return info, lambda: self._small(info) if is_small else self._matrix(info)

    def _matrix(self, info: TensorInfo) -> QuantTensor:
        """Elements of standard deviation 1 / sqrt(columns)."""
        format = info.format
        count = info.nbytes // format.block_bytes
        bank = self._bank(format, info.shape[-1])
        data = torch.empty(count, format.block_bytes, dtype=torch.uint8)
        starts = torch.randint(_BANK - _STRETCH, (-(-count // _STRETCH),), generator=self._draw)
        for at, start in zip(range(0, count, _STRETCH), starts.tolist(), strict=True):
            size = min(_STRETCH, count - at)
            data[at : at + size] = bank[start : start + size]
        rows = data.view(*info.shape[:-1], format.row_bytes(info.shape[-1]))
        return QuantTensor(name=info.name, data=rows, format=format, shape=info.shape)

    def _bank(self, format: QuantFormat, cols: int) -> torch.Tensor:
        """uint8 [_BANK, bytes of a block]"""
        key = (format.name, cols)
        if key not in self._banks:
            values = torch.randn(_PACKED, format.block, generator=self._draw) * cols**-0.5
            packed = encode(values, format)
            chosen = torch.randint(_PACKED, (_BANK,), generator=self._draw)
            self._banks[key] = packed.view(_PACKED, -1)[chosen]
        return self._banks[key]

    def _small(self, info: TensorInfo) -> QuantTensor:
        """Values that keep activations near 1: norms about 1, decays between forgetting and remembering."""
        noise = torch.randn(info.shape, generator=self._draw)
        if info.name.endswith("ssm_a"):
            values = -torch.rand(info.shape, generator=self._draw) * 2 - 0.01
        elif "norm" in info.name:
            values = 1 + noise / 10
        else:
            values = noise / 2
        data = values.view(torch.uint8).view(*info.shape[:-1], -1)
        return QuantTensor(name=info.name, data=data, format=info.format, shape=info.shape)
