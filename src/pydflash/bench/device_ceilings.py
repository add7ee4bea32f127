"""Ceilings of a device, measured in the same run as what they bound: copies, reads and half-precision
products."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from pydflash.bench.ceilings import Ceilings
from pydflash.bench.stopwatch import Stopwatch
from pydflash.kernels.upload import trim

_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}  # of a tensor: beyond any cache
_SIDE = {"cuda": 8192, "cpu": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCeilings:
    """Bytes a second (a copy both reads and writes its bytes), and operations a second: F16 ones on a GPU,
    F32 ones on a CPU, which has no fast F16."""

    copy_bytes_s: float
    read_bytes_s: float
    flops_s: float

    @property
    def floors(self) -> Ceilings:
        """What bounds a step: the better of both ways to move bytes."""
        return Ceilings(
            read_bytes_s=max(self.copy_bytes_s, self.read_bytes_s),
            flops_s=self.flops_s,
            threads=1,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_device(device: torch.device, *, tries: int = 20) -> DeviceCeilings:
    """Best of `tries` each. Leaves no memory behind."""
    copy_s, read_s = _moves(device, tries)
    nbytes, side = _BYTES[device.type], _SIDE[device.type]
    found = DeviceCeilings(
        copy_bytes_s=2 * nbytes / copy_s,
        read_bytes_s=nbytes / read_s,
        flops_s=2.0 * side**3 / _product(device, tries),
    )
    # cuBLAS keeps a workspace, and with it the whole block that it lies in.
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()
    trim(device)
    return found


def _moves(device: torch.device, tries: int) -> tuple[float, float]:
    """Seconds of a copy and of a sum."""
    source = torch.ones(_BYTES[device.type] // 4, device=device)
    dest = torch.empty_like(source)
    watch = Stopwatch(device)
    return watch.busy(lambda: dest.copy_(source), tries).best, watch.busy(source.sum, tries).best


def _product(device: torch.device, tries: int) -> float:
    """Seconds of a square product."""
    side = _SIDE[device.type]
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return Stopwatch(device).busy(lambda: torch.mm(a, b, out=out), tries).best
