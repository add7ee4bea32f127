"""upload and fetch: numbers between the host and a device, without waiting where that can be."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
Array = npt.NDArray[Any]


def staged(values: Array, device: torch.device) -> Tensor:
    """A host tensor of these values, from which a copy to the device need not wait.

    On a GPU it is page-locked; torch keeps such memory until the copy is done, so it may be dropped at once.
    """
    host = torch.from_numpy(values)
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: Array, device: torch.device) -> Tensor:
    """The values on the device, in one copy (on the CPU: in none)."""
    return staged(values, device).to(device, non_blocking=True)


def ints(values: Iterable[int], device: torch.device) -> Tensor:
    """int32 [n] on the device."""
    return upload(np.fromiter(values, np.int32), device)


def fetch(tensors: Sequence[Tensor]) -> list[Array]:
    """Tensors of one device as arrays on the host, waiting for it once."""
    device = tensors[0].device
    if device.type == "cpu":
        return [t.numpy() for t in tensors]
    host = [t.to("cpu", non_blocking=True) for t in tensors]
    torch.cuda.current_stream(device).synchronize()
    return [t.numpy() for t in host]


def wait(device: torch.device) -> None:
    """Until the device has done what was asked of it; for timings."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rows_of(values: Tensor, rows: Sequence[int]) -> Tensor:
    """A copy of some rows of a tensor on the device."""
    first, count = (rows[0] if rows else 0), len(rows)
    if list(rows) == list(range(first, first + count)):
        return values[first : first + count].clone()
    return values.index_select(0, ints(rows, values.device))


def trim(device: torch.device) -> None:
    """Give memory that torch holds in reserve back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
