"""Decoders of the 32-element formats: one scale (and a minimum) for each block of whole numbers.

Each function takes blocks uint8 [n, block_bytes] and returns f32 [n, block elements].
Source: the block structs of `ggml-common.h`.
"""

import torch

from pydflash.kernels.ref.quant_bits import Tensor, bits, fields, half

# The 16 levels of IQ4_NL and IQ4_XS.
NONLINEAR4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def nibbles(data: Tensor, group: int) -> Tensor:
    """Low nibbles of `group` bytes, then their high ones. uint8 [n, k] -> uint8 [n, 2 k]."""
    return fields(data, (0, 4), 0xF, group)


def lookup(levels: tuple[int, ...], codes: Tensor) -> Tensor:
    """Level of each code, f32."""
    return torch.tensor(levels, dtype=torch.float32, device=codes.device)[codes.int()]


def q4_0(b: Tensor) -> Tensor:
    return half(b[:, :2]) * (nibbles(b[:, 2:], 16).float() - 8)


def q4_1(b: Tensor) -> Tensor:
    scale, low = half(b[:, :4]).chunk(2, dim=1)
    return scale * nibbles(b[:, 4:], 16) + low


def q5_0(b: Tensor) -> Tensor:
    return half(b[:, :2]) * (_five(b[:, 2:6], b[:, 6:]).float() - 16)


def q5_1(b: Tensor) -> Tensor:
    scale, low = half(b[:, :4]).chunk(2, dim=1)
    return scale * _five(b[:, 4:8], b[:, 8:]) + low


def q8_0(b: Tensor) -> Tensor:
    return half(b[:, :2]) * b[:, 2:].view(torch.int8)


def iq4_nl(b: Tensor) -> Tensor:
    return half(b[:, :2]) * lookup(NONLINEAR4, nibbles(b[:, 2:], 16))


def q1_0(b: Tensor) -> Tensor:
    """128 signs: a set bit is +d, a clear one -d."""
    scale = half(b[:, :2])
    return torch.where(bits(b[:, 2:]) != 0, scale, -scale)


def _five(high: Tensor, low: Tensor) -> Tensor:
    return nibbles(low, 16) | (bits(high) << 4)
