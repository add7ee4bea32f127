"""Kernels that run beside those that follow them, in a graph: small ones leave most of a GPU idle."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_beside: dict[torch.device, torch.cuda.Stream] = {}


class Branch:
    """Work of a captured step that needs nothing of what comes between `work` and `join`, and nothing of
    what follows it that `work` might change: no sums into the residual.

    Outside of a capture everything is done in order.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if device not in _beside:
                _beside[device] = torch.cuda.Stream(device)
            self._stream = _beside[device]

    @contextmanager
    def work(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """What was made in `work` is there for what follows."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
