"""Decoders of ternary and four-bit float formats.

Each function takes blocks uint8 [n, block_bytes] and returns f32 [n, block elements].
Sources: `ggml-common.h`; the OCP microscaling specification for E2M1, E4M3 and E8M0.
"""

import torch

from pydflash.kernels.ref.quant_bits import Tensor, fields, half
from pydflash.kernels.ref.quant_plain import lookup, nibbles

# E2M1 values doubled, so that they are whole; the scales are halved in return.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def tq1_0(b: Tensor) -> Tensor:
    """Base-3 digits as fixed-point fractions of 256: 48 bytes of five digits, then 4 of four."""
    n = b.shape[0]
    powers = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8, device=b.device).view(1, -1, 1)
    digits = torch.cat(
        [
            (b[:, None, 0:32] * powers).view(n, -1),  # wraps modulo 256 on purpose
            (b[:, None, 32:48] * powers).view(n, -1),
            (b[:, None, 48:52] * powers[:, :4]).view(n, -1),
        ],
        dim=1,
    )
    return half(b[:, 52:54]) * (((digits.short() * 3) >> 8) - 1)


def tq2_0(b: Tensor) -> Tensor:
    return half(b[:, 64:66]) * (fields(b[:, :64], (0, 2, 4, 6), 3, 32).float() - 1)


def mxfp4(b: Tensor) -> Tensor:
    """One power-of-two scale (E8M0) for 32 values; exponents 0 and 1 give f32 subnormals."""
    exponent = b[:, :1].int()
    pattern = torch.where(exponent < 2, 0x00200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    return pattern.view(torch.float32) * lookup(_E2M1, nibbles(b[:, 1:], 16))


def nvfp4(b: Tensor) -> Tensor:
    """An unsigned E4M3 scale for each 16 of 64 values; 0x7F (not a number) reads as zero."""
    n, code = b.shape[0], b[:, :4]
    exponent, fraction = ((code >> 3) & 0xF).int(), (code & 7).float()
    normal = (1 + fraction / 8) * torch.ldexp(torch.ones_like(fraction), exponent - 7)
    scale = torch.where(exponent == 0, fraction * 2.0**-9, normal) * 0.5
    scale = torch.where(code == 0x7F, torch.zeros_like(scale), scale)
    values = lookup(_E2M1, nibbles(b[:, 4:], 8)).view(n, 4, 16)
    return (scale.unsqueeze(-1) * values).view(n, -1)
