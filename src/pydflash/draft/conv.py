"""Conv: DFlash2's short convolutions around a sublayer, inside the block.

Tap k of slot t meets slot t - k of the same block; before the block there is nothing. The taps are learned
per channel and corrected per slot and group of channels, from the sublayer's own input.
"""

import torch

from pydflash.draft.config import ConvConfig
from pydflash.draft.tensors import DraftTensors
from pydflash.kernels.ops import Span

Tensor = torch.Tensor


class Conv:
    """Both convolutions of one sublayer: of its normed input and of its output."""

    def __init__(self, tensors: DraftTensors, name: str, config: ConvConfig, hidden: int) -> None:
        self._ops = tensors.ops
        self._width, self._group = config.width, config.group
        self._base = tensors.dense(f"{name}.base", 2, config.width, hidden)
        self._proj = tensors.weight(f"{name}.proj.weight", cols=hidden)

    def kernels(self, x: Tensor, spans: tuple[Span, ...]) -> tuple[Tensor, Tensor]:
        """The taps for input and output, f32 [T, W, E] each, from the sublayer's input x [T, E]."""
        shape = (len(x), 2, self._width, x.shape[1] // self._group)
        moved = self._ops.linear(x, self._proj, spans).view(shape)
        before, after = (self._base + moved.repeat_interleave(self._group, -1)).unbind(1)
        return before, after


def convolve(x: Tensor, kernel: Tensor, block: int) -> Tensor:
    """x f32 [R * block, E] with taps [R * block, W, E] -> the same shape; blocks do not meet."""
    slots = x.view(-1, block, x.shape[1])
    taps = kernel.view(-1, block, *kernel.shape[1:])
    out = slots * taps[:, :, 0]
    for k in range(1, min(kernel.shape[1], block)):
        out[:, k:] += slots[:, :-k] * taps[:, k:, k]
    return out.view_as(x)
