"""Moves: what commits leave to the device, all rows and layers of a step together."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pydflash.kernels.ops import PAGE_SIZE, Paths
from pydflash.kernels.upload import apart, joined, staged, upload
from pydflash.state.kv import KvStore
from pydflash.state.recurrent import Advance, RecurrentStore

Tensor = torch.Tensor

_WIDTHS = (16, 32, 64)
"""Positions whose moves, and accepted tokens whose advances, are captured together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Stored positions that move from place to place, and recurrent states that advance along tokens."""

    kv: KvStore
    recurrent: RecurrentStore | None
    places: list[tuple[int, int]]
    advances: list[Advance]

    def run(self) -> None:
        """Queue it. Until then no step, copy or release may touch the states."""
        lists = self._lists()
        src, _, _, nodes, cu = lists
        if (src or nodes) and not self._repeat(lists):
            flat = upload(joined(lists), self.kv.ops.device)
            self._queue(apart(flat, [len(values) for values in lists]), tuple(cu))

    def _lists(self) -> list[list[int]]:
        """Places from and to which keys and values move; slots, their tokens, and where these begin."""
        cu = [0]
        for a in self.advances:
            cu.append(cu[-1] + len(a.nodes))
        return [
            [src for src, _ in self.places],
            [dst for _, dst in self.places],
            [a.slot for a in self.advances],
            [node for a in self.advances for node in a.nodes],
            cu,
        ]

    def _queue(self, parts: Sequence[Tensor], cu: tuple[int, ...]) -> None:
        src, dst, slots, nodes, starts = parts
        if len(src):
            self.kv.move(src, dst)
        if len(nodes):
            assert self.recurrent is not None
            self.recurrent.commit(Paths(slots=slots, nodes=nodes, cu=cu, starts=starts))

    def _repeat(self, lists: list[list[int]]) -> bool:
        """As a graph captured it, padded: places that move to themselves, slots that do not advance."""
        src, dst, slots, nodes, cu = lists
        commits, scratch, device = self.kv.commits, self.kv.scratch, self.kv.ops.device
        width = next((n for n in _WIDTHS if n >= max(len(src), len(nodes))), None)
        if commits is None or scratch is None or width is None:
            return False
        rows, more = 0, 0
        if nodes:
            rows, more = 1 << (len(slots) - 1).bit_length(), width
        sizes = (width, width, rows, more, rows + 1)
        still = [scratch * PAGE_SIZE] * width
        padded = (
            src + still[len(src) :],
            dst + still[len(dst) :],
            slots + [0] * (rows - len(slots)),
            nodes + [0] * (more - len(nodes)),
            cu + cu[-1:] * (rows + 1 - len(cu)),
        )

        def work(x: list[Tensor]) -> list[Tensor]:
            parts = apart(x[0], sizes)
            self._queue(parts, tuple(parts[4].tolist()) if commits.on_host else ())
            return []

        def blank() -> list[Tensor]:
            return [torch.from_numpy(joined((still, still, *([0] * n for n in sizes[2:]))))]

        tapes: tuple[int, ...] = ()
        if nodes and self.recurrent is not None and not commits.on_host:
            tapes = self.recurrent.tapes_at
        flat = staged(joined(padded), device)
        return commits.run((width, rows, tapes), [flat], device, work, blank) is not None
