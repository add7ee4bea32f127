"""Ceilings of this machine, measured in the same run as what they bound: memory reads and multiply-adds."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_READ_BYTES = 256 << 20  # beyond any cache this is meant for
_SIDE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bytes read per second and F32 operations per second, with the threads of the run.

    `read_by` and `flops_by` say what was the fastest: a probe, or work of the run itself.
    """

    read_bytes_s: float
    flops_s: float
    threads: int
    read_by: str = "probe"
    flops_by: str = "probe"

    def best(self, other: "Ceilings") -> "Ceilings":
        """The higher of each: a ceiling measured in a slow moment is none."""
        read = max(self, other, key=lambda c: c.read_bytes_s)
        flops = max(self, other, key=lambda c: c.flops_s)
        return Ceilings(
            read_bytes_s=read.read_bytes_s,
            flops_s=flops.flops_s,
            threads=self.threads,
            read_by=read.read_by,
            flops_by=flops.flops_by,
        )

    def raised(self, nbytes: float, flops: float, seconds: float, by: str) -> "Ceilings":
        """These, or what work done in `seconds` has shown to be possible: no floor lies above it."""
        seen = Ceilings(
            read_bytes_s=nbytes / seconds,
            flops_s=flops / seconds,
            threads=self.threads,
            read_by=by,
            flops_by=by,
        )
        return self.best(seen)

    def floor(self, nbytes: float, flops: float) -> float:
        """Seconds that work of this size takes at the very least."""
        return max(nbytes / self.read_bytes_s, flops / self.flops_s)

    def bound(self, nbytes: float, flops: float) -> str:
        """Which ceiling is the lower one: "memory" or "arithmetic"."""
        reads_longer = nbytes / self.read_bytes_s >= flops / self.flops_s
        return "memory" if reads_longer else "arithmetic"


def measure(threads: int, *, tries: int = 9) -> Ceilings:
    """Best of `tries`: a sum over 256 MiB, and a square F32 product of 1024 (2 x 1024^3 operations)."""
    torch.set_num_threads(threads)
    memory = torch.ones(_READ_BYTES // 4)
    read = _best(memory.sum, tries)
    a, b = torch.rand(_SIDE, _SIDE), torch.rand(_SIDE, _SIDE)
    out = torch.empty(_SIDE, _SIDE)
    product = _best(lambda: torch.mm(a, b, out=out), tries)
    return Ceilings(
        read_bytes_s=_READ_BYTES / read, flops_s=2.0 * _SIDE**3 / product, threads=threads
    )


def _best(work: Callable[[], object], tries: int) -> float:
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
