"""Rotary embedding: what a file's metadata asks for, and the table it means.

Frequencies follow the RoPE paper (Su et al. 2021); YaRN follows Peng et al. 2023, section 3, with the
rounding of the correction range that GGUF models were trained with.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from pydflash.errors import CheckpointError
from pydflash.kernels.ops import Rope

Tensor = torch.Tensor
F64 = npt.NDArray[np.float64]
Scaling = Literal["none", "linear", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """How positions turn. The first `dims` of each head are rotated."""

    dims: int
    base: float
    interleaved: bool
    scaling: Scaling = "none"
    factor: float = 1.0
    original_ctx: int = 0
    attn_factor: float = 1.0
    ext_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.factor, self.attn_factor, self.beta_fast, self.beta_slow)
        if not (self.dims > 0 and self.dims % 2 == 0 and 1 < self.base < math.inf):
            raise CheckpointError(
                f"rope over {self.dims} dimensions with base {self.base} cannot be; "
                "download or convert the file again"
            )
        if not all(0 < number < math.inf for number in numbers):
            raise CheckpointError(
                f"rope scaling numbers must be above 0, the file has {numbers}; "
                "download or convert it again"
            )


def rope_table(
    spec: RopeSpec, positions: int, factors: Tensor | None, device: torch.device
) -> Rope:
    """cos and sin for positions 0..positions - 1, f32 [positions, dims / 2], computed in f64.

    `factors` f32 [dims / 2] are the file's `rope_freqs.weight`.
    """
    # NOTE: numpy, because torch would touch megabytes of its library for this one table.
    frequency = spec.base ** (-np.arange(spec.dims // 2, dtype=np.float64) * 2 / spec.dims)
    if factors is not None:
        frequency = frequency / factors.cpu().numpy().astype(np.float64)
    magnitude = 1.0
    if spec.scaling == "linear":
        frequency = frequency / spec.factor
    elif spec.scaling == "yarn":
        keep = _yarn_ramp(spec) * spec.ext_factor
        frequency = frequency * keep + frequency / spec.factor * (1 - keep)
        magnitude = spec.attn_factor * (1 + 0.1 * math.log(spec.factor))
    angle = np.outer(np.arange(positions, dtype=np.float64), frequency)

    def table(values: F64) -> Tensor:
        return torch.from_numpy((values * magnitude).astype(np.float32)).to(device)

    return Rope(
        cos=table(np.cos(angle)),
        sin=table(np.sin(angle)),
        dims=spec.dims,
        interleaved=spec.interleaved,
    )


def _yarn_ramp(spec: RopeSpec) -> F64:
    """1 where a frequency is kept, 0 where it is interpolated, linear between. f64 [dims / 2]."""

    def index_of(rotations: float) -> float:
        turns = spec.original_ctx / (rotations * 2 * math.pi)
        return spec.dims * math.log(turns) / (2 * math.log(spec.base))

    low = max(math.floor(index_of(spec.beta_fast)), 0)
    high = min(math.ceil(index_of(spec.beta_slow)), spec.dims - 1)
    at = np.arange(spec.dims // 2, dtype=np.float64)
    return 1 - np.clip((at - low) / max(high - low, 0.001), 0, 1)
