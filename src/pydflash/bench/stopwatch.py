"""Stopwatch: seconds of work on a device, by its own events where it has them, else by the host's clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

from pydflash.bench.report import Samples
from pydflash.kernels.upload import wait


class Stopwatch:
    """Times work of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_gpu = device.type == "cuda"

    def wall(self, work: Callable[[], object], repeats: int) -> Samples:
        """Each repeat from an idle device to an idle device."""
        times = []
        for _ in range(repeats):
            wait(self.device)
            began = time.perf_counter()
            work()
            wait(self.device)
            times.append(time.perf_counter() - began)
        return Samples(tuple(times))

    def busy(self, work: Callable[[], object], repeats: int) -> Samples:
        """Repeats queued behind one another, so that the host's part hides behind the device's."""
        if not self.is_gpu:
            return self.wall(work, repeats)
        marks = [_event() for _ in range(repeats + 2)]
        for mark in marks[:-1]:
            mark.record()
            work()
        marks[-1].record()
        wait(self.device)
        pairs = pairwise(marks[1:])  # the first waited for the host
        return Samples(tuple(a.elapsed_time(b) / 1e3 for a, b in pairs))


class Parts:
    """Seconds of named calls inside a larger work, each from an idle device to an idle device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def watching(self, *calls: tuple[object, str, str]) -> Iterator[None]:
        """Time (object, method, name) while the block runs."""
        for owner, method, name in calls:
            setattr(owner, method, self._timed(getattr(owner, method), name))
        try:
            yield
        finally:
            for owner, method, _ in calls:
                delattr(owner, method)  # the class's own shows again

    def _timed(self, call: Callable[..., object], name: str) -> Callable[..., object]:
        spent = self.seconds.setdefault(name, [])

        def timed(*args: object, **kwargs: object) -> object:
            wait(self._device)
            began = time.perf_counter()
            with torch.profiler.record_function(name):
                result = call(*args, **kwargs)
                wait(self._device)
            spent.append(time.perf_counter() - began)
            return result

        return timed


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
