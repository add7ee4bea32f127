"""Rotary embedding: what a file's metadata asks for, and the table it means.

Frequencies follow the RoPE paper (Su et al. 2021); YaRN follows Peng et al. 2023, section 3, with the
rounding of the correction range that GGUF models were trained with.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from pydflash.kernels.ops import Rope

Tensor = torch.Tensor
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


def rope_table(
    spec: RopeSpec, positions: int, factors: Tensor | None, device: torch.device
) -> Rope:
    """cos and sin for positions 0..positions - 1, f32 [positions, dims / 2], computed in f64.

    `factors` f32 [dims / 2] are the file's `rope_freqs.weight`.
    """
    half = spec.dims // 2
    frequency = spec.base ** (-torch.arange(half, dtype=torch.float64) * 2 / spec.dims)
    if factors is not None:
        frequency = frequency / factors.double().cpu()
    magnitude = 1.0
    if spec.scaling == "linear":
        frequency = frequency / spec.factor
    elif spec.scaling == "yarn":
        keep = _yarn_ramp(spec) * spec.ext_factor
        frequency = frequency * keep + frequency / spec.factor * (1 - keep)
        magnitude = spec.attn_factor * (1 + 0.1 * math.log(spec.factor))
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), frequency)
    return Rope(
        cos=(angle.cos() * magnitude).float().to(device),
        sin=(angle.sin() * magnitude).float().to(device),
        dims=spec.dims,
        interleaved=spec.interleaved,
    )


def _yarn_ramp(spec: RopeSpec) -> Tensor:
    """1 where a frequency is kept, 0 where it is interpolated, linear between. f64 [dims / 2]."""

    def index_of(rotations: float) -> float:
        turns = spec.original_ctx / (rotations * 2 * math.pi)
        return spec.dims * math.log(turns) / (2 * math.log(spec.base))

    low = max(math.floor(index_of(spec.beta_fast)), 0)
    high = min(math.ceil(index_of(spec.beta_slow)), spec.dims - 1)
    at = torch.arange(spec.dims // 2, dtype=torch.float64)
    return 1 - ((at - low) / max(high - low, 0.001)).clamp(0, 1)
