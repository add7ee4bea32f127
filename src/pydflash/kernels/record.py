"""Recorder: work on a GPU captured as a graph, to be repeated with other contents in the same buffers.

What the work returns lies at fixed places, good until the same recorder captures or repeats anything: its
graphs share one pool of memory, and none runs beside another.
"""

import gc
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pydflash.device import Scarce
from pydflash.kernels.ops import OpTable

Tensor = torch.Tensor
Work = Callable[[], list[Tensor]]
FIRST_PAGES = 128  # of the narrowest page tables: 28 of attention's chunks, most of them fine ones


class Recorder(Protocol):
    """Captures work: a way to repeat it, and its results."""

    on_host: bool
    """Repeating runs the work itself again, so that what it reads on the host must be true then."""

    def __call__(self, work: Work) -> tuple[Callable[[], None], list[Tensor]]:
        """`work` must do nothing but launch kernels, on tensors that live as long as the graph."""


class GraphRecorder:
    """CUDA graphs (HIP's too) in one memory pool."""

    on_host = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def __call__(self, work: Work) -> tuple[Callable[[], None], list[Tensor]]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        # Once for real: kernels are compiled, tuned and loaded, which no capture can hold.
        try:
            with torch.cuda.stream(self._stream):
                work()
        finally:  # what it had begun must not run beside the step that is then taken eagerly
            current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        gc.freeze()  # torch collects garbage first: a second each time, over a large vocabulary
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                results = work()
        finally:
            gc.unfreeze()
        return graph.replay, results


class Again:
    """Repeats the work itself into the places of its first results: graphs for devices that have none.

    Slower than calling the work; it is how graphs' host logic runs where there is no GPU.
    """

    on_host = True

    def __call__(self, work: Work) -> tuple[Callable[[], None], list[Tensor]]:
        results = [t.clone() for t in work()]

        def replay() -> None:
            for mine, new in zip(results, work(), strict=True):
                mine.copy_(new)

        return replay, results


class Captures:
    """Work by key, captured when it first comes with that key: the same work on inputs of the same shapes.

    Capturing does the work besides, so once more than it was asked for: on the same inputs, or on `blank`
    ones, where twice would do harm or some inputs are shorter than the work is captured for.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._known: dict[Hashable, _Captured | None] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def on_host(self) -> bool:
        """See Recorder."""
        return self._record.on_host

    def run(
        self,
        key: Hashable,
        inputs: list[Tensor],
        device: torch.device,
        work: Callable[[list[Tensor]], list[Tensor]],
        blank: Callable[[], list[Tensor]] | None = None,
    ) -> list[Tensor] | None:
        """The work's results on these inputs, wherever they lie. None: there was no memory to capture it.

        An input may have fewer rows than the blank one; the work then finds anything in the last ones.
        """
        if key not in self._known:
            self._known[key] = self._capture(blank() if blank else inputs, device, work)
        known = self._known[key]
        if known is None:
            return None
        for mine, new in zip(known.inputs, inputs, strict=True):
            mine[: len(new)].copy_(new, non_blocking=True)
        known.replay()
        return known.results

    def _capture(
        self,
        inputs: list[Tensor],
        device: torch.device,
        work: Callable[[list[Tensor]], list[Tensor]],
    ) -> "_Captured | None":
        with Scarce():
            mine = [x.to(device, copy=True) for x in inputs]
            replay, results = self._record(lambda: work(mine))
            return _Captured(mine, replay, results)
        return None


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: list[Tensor]
    replay: Callable[[], None]
    results: list[Tensor]


def page_widths(pages: int) -> tuple[int, ...]:
    """Widths of page tables that are captured, the last for all `pages`: few, as each is a graph of its
    own, and not the last alone, as attention's grids follow them."""
    widths = [FIRST_PAGES]
    while widths[-1] < pages:
        widths.append(4 * widths[-1])
    return (*[w for w in widths if w < pages], pages)


def recorder(ops: OpTable) -> Recorder | None:
    """What captures these kernels' work; None where it is best just done, or reads what a graph cannot."""
    captures = ops.device.type == "cuda" and ops.name == "triton"
    return GraphRecorder(ops.device) if captures else None
