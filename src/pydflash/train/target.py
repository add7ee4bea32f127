"""Target: the frozen model a drafter is trained for, as training needs it: its text and its features.

A dense llama or qwen3 runs as plain batched torch (`dense`), any other architecture through the engine
(`through_engine`). Either way the text is the target's own and a feature is the output of a layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from pydflash.checkpoint.files import Checkpoint
from pydflash.errors import CheckpointError
from pydflash.kernels.ref.quant import dequantize

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """What a drafter's configuration takes over from its target."""

    arch: str
    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    eps: float
    rope_base: float
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Prompts to continue. One temperature for each; 0 is greedy. `min_p` cuts the tail of a draw."""

    prompts: Sequence[Sequence[int]]
    temperatures: Sequence[float]
    max_new: int
    stop: frozenset[int]
    seed: int = 0
    min_p: float = 0.05


class Target(Protocol):
    """Frozen. Tensors live on `device`."""

    shape: TargetShape
    device: torch.device

    def embedding(self) -> Tensor:
        """f32 [V, E] on the device."""

    def head(self) -> Tensor:
        """f32 [V, E] on the device: the output matrix, which drafters share."""

    def features(self, tokens: Tensor, layers: Sequence[int]) -> Tensor:
        """Tokens int64 [R, T], padded on the right; outputs of `layers` side by side, [R, T, n * E]."""

    def generate(self, order: Order, progress: Callable[[int], None]) -> list[list[int]]:
        """The continuations, a stop token included; `progress` is told the tokens made since."""


def matrix(checkpoint: Checkpoint, name: str, device: torch.device) -> Tensor:
    """A tensor of the file as f32 on the device."""
    return dequantize(checkpoint.tensor(name).to(device))


def head_name(checkpoint: Checkpoint) -> str:
    """The tensor that is the output matrix: the embedding where the file has no other."""
    return "output.weight" if "output.weight" in checkpoint.tensors else "token_embd.weight"


def stop_tokens(path: Path, eog: Sequence[int]) -> frozenset[int]:
    """End-of-generation ids; training needs at least one."""
    if not eog:
        raise CheckpointError(f"{path.name} names no end-of-text token; training needs one")
    return frozenset(eog)
