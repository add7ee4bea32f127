"""DraftTensors: a drafter's tensors by canonical name, put into the layout of the ops that will run it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels.ops import OpTable, Weight
from pydflash.kernels.ref.quant import dequantize
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor
Floats = npt.NDArray[np.float16] | npt.NDArray[np.float32]
Get = Callable[[str], QuantTensor | None]
"""A tensor as its file stores it, or None when the file has none of that name (`draft.config` lists them)."""

_INTEGERS = {"I32": torch.int32, "I64": torch.int64}


class DraftTensors:
    """Reads what a network asks for. `nbytes` counts what is held in memory."""

    def __init__(self, get: Get, ops: OpTable) -> None:
        self.ops = ops
        self.nbytes = 0
        self._get = get

    def has(self, name: str) -> bool:
        return self._get(name) is not None

    def weight(self, *names: str, cols: int, bias: bool = False) -> Weight:
        """A product operand merged along rows, each part [rows, cols]; with `bias`, also each `.bias`."""
        parts = [self._matrix(name, cols) for name in names]
        weight = self.ops.prepare(parts, self._bias(names, parts) if bias else None)
        scales = [self._get(name.removesuffix(".weight") + ".scale") for name in names]
        if any(scale is not None for scale in scales):
            if not self.ops.scales:
                raise UnsupportedError(
                    f"{names[0]} has a scale beside it; the {self.ops.name} backend cannot apply it: "
                    "run with --ops ref"
                )
            weight.scale = torch.cat(
                [
                    torch.ones(p.num_rows) if s is None else dequantize(s).expand(p.num_rows)
                    for p, s in zip(parts, scales, strict=True)
                ]
            ).to(self.ops.device)
        self.nbytes += weight.nbytes
        return weight

    def rows(self, stored: QuantTensor) -> Weight:
        """A product operand from rows that another file lends."""
        weight = self.ops.prepare([stored])
        self.nbytes += weight.nbytes
        return weight

    def dense(self, name: str, *shape: int) -> Tensor:
        """A small tensor as f32 of this shape, on the device."""
        values = dequantize(self._take(name)).to(self.ops.device)
        if tuple(values.shape) != shape:
            raise _misshapen(name, values.shape, shape)
        self.nbytes += 4 * values.numel()
        return values

    def table(self, name: str, *, cols: int) -> Floats:
        """A matrix [rows, cols] on the host, to look up rows of; f16 unless the file says more."""
        stored = self._take(name)
        if len(stored.shape) != 2 or stored.cols != cols:
            raise _misshapen(name, stored.shape, (stored.shape[0], cols))
        exact = stored.format.name in ("F32", "BF16")
        values: Floats = dequantize(stored).to(torch.float32 if exact else torch.float16).numpy()
        self.nbytes += values.nbytes
        return values

    def dense_or_none(self, name: str, *shape: int) -> Tensor | None:
        return self.dense(name, *shape) if self.has(name) else None

    def integers(self, name: str, size: int) -> Tensor:
        """An integer vector as int64 [size], on the device."""
        tensor = self._take(name)
        dtype = _INTEGERS.get(tensor.format.name)
        if dtype is None:
            raise CheckpointError(f"{name} is {tensor.format.name}, it must hold integers")
        values = tensor.data.contiguous().view(dtype).flatten().long()
        if values.shape != (size,):
            raise _misshapen(name, values.shape, (size,))
        return values.to(self.ops.device)

    def _take(self, name: str) -> QuantTensor:
        tensor = self._get(name)
        if tensor is None:
            raise CheckpointError(f"the drafter has no tensor {name}; download or convert it again")
        return tensor

    def _matrix(self, name: str, cols: int) -> QuantTensor:
        tensor = self._take(name)
        if len(tensor.shape) != 2 or tensor.cols != cols:
            raise _misshapen(name, tensor.shape, (tensor.shape[0], cols))
        if tensor.format.name not in self.ops.formats:
            raise UnsupportedError(
                f"{name} is {tensor.format.name}; the {self.ops.name} backend has no kernel for it: "
                "run with --ops ref or requantise the drafter with `pydflash quantize`"
            )
        return tensor

    def _bias(self, names: tuple[str, ...], parts: list[QuantTensor]) -> Tensor | None:
        found = [
            self.dense_or_none(name.removesuffix(".weight") + ".bias", part.num_rows)
            for name, part in zip(names, parts, strict=True)
        ]
        if all(b is None for b in found):
            return None
        return torch.cat(
            [
                torch.zeros(part.num_rows, device=self.ops.device) if b is None else b
                for part, b in zip(parts, found, strict=True)
            ]
        )


def _misshapen(name: str, have: tuple[int, ...], want: tuple[int, ...]) -> CheckpointError:
    return CheckpointError(
        f"the drafter's {name} is {list(have)}, its configuration implies {list(want)}; "
        "download or convert it again"
    )
