"""MappedFile: a file in memory, private and copy-on-write, whose pages can be let go again.

Views stay valid after `close()`: the mapping ends with its last view.
"""

import mmap
from pathlib import Path

import numpy as np
import torch

from pydflash.errors import CheckpointError

# Linux's number; Python names it from 3.13 on. Without it the kernel would want memory set aside for
# every byte of a private mapping, and refuse files larger than the machine's.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class MappedFile:
    """The bytes of one file. Nothing is ever written to the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.size = path.stat().st_size
            self._map: mmap.mmap | None = _map(path, self.size)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be mapped into memory: {error}") from None
        # torch.frombuffer lets go of the buffer; an array holds on to it as long as a view lives.
        self._bytes: np.ndarray | None = np.frombuffer(self._map, dtype=np.uint8)

    @property
    def buffer(self) -> mmap.mmap:
        if self._map is None:
            raise CheckpointError(f"{self.path} was closed")
        return self._map

    def view(self, offset: int, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes], no copy. Writing to it changes memory, not the file: don't."""
        if self._bytes is None:
            raise CheckpointError(f"{self.path} was closed")
        return torch.from_numpy(self._bytes[offset : offset + nbytes])

    def release(self, offset: int, nbytes: int) -> None:
        """Give back the memory of all pages that lie wholly in the range; a later read loads them again."""
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = offset + nbytes
        # The end of the file ends a page, too: nothing else lives there.
        stop = stop if stop == self.size else stop // mmap.PAGESIZE * mmap.PAGESIZE
        self._advise("MADV_DONTNEED", start, stop)

    def prefetch(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Ask the system to read the range ahead."""
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        stop = self.size if nbytes is None else offset + nbytes
        self._advise("MADV_WILLNEED", start, stop)

    def close(self) -> None:
        self._map = None
        self._bytes = None

    def _advise(self, name: str, start: int, stop: int) -> None:
        advice = getattr(mmap, name, None)
        if advice is not None and self._map is not None and stop > start:
            self._map.madvise(advice, start, stop - start)


def _map(path: Path, size: int) -> mmap.mmap:
    with path.open("rb") as file:
        if hasattr(mmap, "MAP_PRIVATE"):
            flags = mmap.MAP_PRIVATE | (_NORESERVE if hasattr(mmap, "MAP_POPULATE") else 0)
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            return mmap.mmap(file.fileno(), size, flags=flags, prot=protection)
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
