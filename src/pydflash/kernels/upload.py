"""upload and fetch: numbers between the host and a device, without waiting where that can be."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor
Array = npt.NDArray[Any]
STAGE_BYTES = 32 << 20


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


def joined(lists: Sequence[Sequence[int]]) -> Array:
    """All in one int32 array, to be told `apart` again. Each begins at 16 bytes, like memory of its own:
    kernels are compiled for what is known of addresses."""
    starts = _starts([len(values) for values in lists])
    flat = np.zeros(starts[-1], np.int32)
    for start, values in zip(starts, lists, strict=False):
        flat[start : start + len(values)] = values
    return flat


def apart(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The lists that were `joined`, as views."""
    return [flat[s : s + n] for s, n in zip(_starts(sizes), sizes, strict=False)]


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(-(-n // 4) * 4 for n in sizes)]


class Staging:
    """Brings large tensors to a GPU through page-locked memory in turns: while one part crosses, the next is
    read, by all threads, from wherever it lies (a mapped file, mostly)."""

    def __init__(self, device: torch.device, size: int = STAGE_BYTES) -> None:
        gpu = device.type == "cuda"
        self._device = device
        self._places = [torch.empty(size, dtype=torch.uint8, pin_memory=gpu) for _ in range(2)]
        self._done = [_event() for _ in range(2 * gpu)]
        self._turn = 0

    def push(self, values: Tensor) -> Tensor:
        """A copy of a host tensor on the device, under way: later work there waits for it."""
        out = torch.empty(values.shape, dtype=values.dtype, device=self._device)
        source = values.contiguous().view(-1).view(torch.uint8)
        target = out.view(-1).view(torch.uint8)
        size = len(self._places[0])
        for start in range(0, len(source), size):
            part = source[start : start + size]
            self._turn ^= 1
            place = self._places[self._turn][: len(part)]
            if self._done:
                self._done[self._turn].synchronize()
            place.copy_(part)
            target[start : start + size].copy_(place, non_blocking=True)
            if self._done:
                self._done[self._turn].record()
        return out

    def wait(self) -> None:
        """Until all has crossed."""
        for done in self._done:
            done.synchronize()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


_stagings: dict[torch.device, Staging] = {}


def push(values: Tensor, device: torch.device) -> Tensor:
    """A large host tensor on the device. On the CPU, or from there, it is as it was."""
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    if device not in _stagings:
        _stagings[device] = Staging(device)
    return _stagings[device].push(values)


def end_pushes() -> None:
    """Give the page-locked memory of `push` back to the system, and what else nobody holds of such memory:
    nothing large is to come."""
    for staging in _stagings.values():
        staging.wait()
    _stagings.clear()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        _empty_host_cache()


def _empty_host_cache() -> None:
    """Torch keeps page-locked memory for the next who wants some; no public name lets go of it."""
    for name in ("_accelerator_emptyHostCache", "_host_emptyCache"):  # the second is the older one
        empty = getattr(torch._C, name, None)
        if empty is not None:
            empty()
            return


def page_locked(size: int, device: torch.device) -> Tensor:
    """uint8 [size] on the host, at addresses that kernels of a GPU may read. Raises MemoryError."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    except RuntimeError as error:  # of the driver, or torch's own
        raise MemoryError(f"no {size >> 20} MiB of page-locked memory: {error}") from error


def fetch(tensors: Sequence[Tensor]) -> list[Array]:
    """Tensors of one device as arrays on the host, waiting for it once. On the CPU, they themselves."""
    if tensors[0].device.type == "cpu":
        return [t.numpy() for t in tensors]
    return Fetch(tensors).arrays()


class Fetch:
    """Copies of tensors of one device on their way to the host: what is done to the tensors later does not
    show in them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device
        self._done: torch.cuda.Event | None = None
        if device.type == "cpu":
            self._host = [t.clone() for t in tensors]
            return
        self._host = [t.to("cpu", non_blocking=True) for t in tensors]  # page-locked
        self._done = _event()
        self._done.record(torch.cuda.current_stream(device))

    def arrays(self) -> list[Array]:
        """The copies, once they are there."""
        if self._done is not None:
            self._done.synchronize()
        return [t.numpy() for t in self._host]


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
