"""Pack floats into the formats with one scale (and a minimum) for 32 values, and into half floats.

Bit-equal to the official `gguf` quantisers. Each function takes f32 blocks [n, block] and returns
uint8 [n, block_bytes].
"""

import torch

Tensor = torch.Tensor


def half_bytes(values: Tensor) -> Tensor:
    """f32 [n, k] -> little-endian f16, uint8 [n, 2 k]."""
    return values.to(torch.float16).view(torch.uint8)


def gather_fields(codes: Tensor, shifts: tuple[int, ...], group: int) -> Tensor:
    """Inverse of `kernels.ref.quant_bits.fields`. uint8 [n, g * len(shifts) * group] -> [n, g * group]."""
    n = codes.shape[0]
    by = torch.tensor(shifts, dtype=torch.uint8, device=codes.device).view(1, 1, -1, 1)
    moved = codes.view(n, -1, len(shifts), group) << by  # fields are disjoint, so adding is or-ing
    return moved.sum(dim=2, dtype=torch.uint8).view(n, -1)


def f32(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def f16(x: Tensor) -> Tensor:
    return half_bytes(x.contiguous())


def bf16(x: Tensor) -> Tensor:
    return x.contiguous().to(torch.bfloat16).view(torch.uint8)


def q4_0(x: Tensor) -> Tensor:
    scale, codes = _signed(x, 8)
    return torch.cat([half_bytes(scale), gather_fields(codes, (0, 4), 16)], dim=1)


def q5_0(x: Tensor) -> Tensor:
    scale, codes = _signed(x, 16)
    return torch.cat([half_bytes(scale), *_five(codes)], dim=1)


def q4_1(x: Tensor) -> Tensor:
    scale, low, codes = _ranged(x, 15)
    packed = gather_fields(codes, (0, 4), 16)
    return torch.cat([half_bytes(scale), half_bytes(low), packed], dim=1)


def q5_1(x: Tensor) -> Tensor:
    scale, low, codes = _ranged(x, 31)
    return torch.cat([half_bytes(scale), half_bytes(low), *_five(codes)], dim=1)


def q8_0(x: Tensor) -> Tensor:
    scale = x.abs().amax(dim=1, keepdim=True) / 127
    scaled = x * _inverse(scale)
    size = scaled.abs()
    whole = size.floor()
    # Halves go away from zero, unlike torch.round.
    away = whole + (2 * (size - whole)).floor()
    codes = (scaled.sign() * away).to(torch.int8).view(torch.uint8)
    return torch.cat([half_bytes(scale), codes], dim=1)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)


def _signed(x: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Scale so that the value of largest magnitude, sign kept, has code 0 (of 2 x levels)."""
    extreme = x.gather(1, x.abs().argmax(dim=1, keepdim=True))
    scale = extreme / -levels
    codes = (x * _inverse(scale) + (levels + 0.5)).trunc()
    return scale, codes.clamp_(0, 2 * levels - 1).to(torch.uint8)


def _ranged(x: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    low = x.amin(dim=1, keepdim=True)
    scale = (x.amax(dim=1, keepdim=True) - low) / top
    codes = ((x - low) * _inverse(scale) + 0.5).trunc()
    return scale, low, codes.clamp_(0, top).to(torch.uint8)


def _five(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Fifth bits as a 32-bit word, then nibbles."""
    fifth = gather_fields(codes >> 4, tuple(range(8)), 1)
    return fifth, gather_fields(codes & 0xF, (0, 4), 16)
