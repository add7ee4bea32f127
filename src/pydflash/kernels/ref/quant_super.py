"""Decoders of the K formats: super-blocks of 256 with quantised scales (and minima) of their sub-blocks.

Each function takes blocks uint8 [n, block_bytes] and returns f32 [n, 256].
Source: the block structs of `ggml-common.h`.
"""

import torch

from pydflash.kernels.ref.quant_bits import Tensor, fields, half, words16
from pydflash.kernels.ref.quant_plain import NONLINEAR4, lookup, nibbles


def q2_k(b: Tensor) -> Tensor:
    scales, codes = b[:, :16], fields(b[:, 16:80], (0, 2, 4, 6), 3, 32)
    d, dmin = half(b[:, 80:84]).chunk(2, dim=1)
    return _affine(codes, d * (scales & 0xF), dmin * (scales >> 4))


def q3_k(b: Tensor) -> Tensor:
    # Scales: 16 low nibbles in 8 bytes, then 16 high pairs in 4 bytes; stored plus 32.
    low = nibbles(b[:, 96:104], 8)
    high = fields(b[:, 104:108], (0, 2, 4, 6), 3, 4)
    scales = (low | (high << 4)).float() - 32
    # The third bit of a code is stored inverted: set means "subtract nothing".
    codes = fields(b[:, 32:96], (0, 2, 4, 6), 3, 32).float()
    clear = fields(b[:, :32], range(8), 1, 32) ^ 1
    return _linear(codes - (clear << 2), half(b[:, 108:110]) * scales)


def q4_k(b: Tensor) -> Tensor:
    d, dmin = half(b[:, :4]).chunk(2, dim=1)
    scales, mins = six_bit_pairs(b[:, 4:16])
    return _affine(nibbles(b[:, 16:], 32), d * scales, dmin * mins)


def q5_k(b: Tensor) -> Tensor:
    d, dmin = half(b[:, :4]).chunk(2, dim=1)
    scales, mins = six_bit_pairs(b[:, 4:16])
    codes = nibbles(b[:, 48:], 32) | (fields(b[:, 16:48], range(8), 1, 32) << 4)
    return _affine(codes, d * scales, dmin * mins)


def q6_k(b: Tensor) -> Tensor:
    low = nibbles(b[:, :128], 64)
    high = fields(b[:, 128:192], (0, 2, 4, 6), 3, 32)
    codes = (low | (high << 4)).float() - 32
    return _linear(codes, half(b[:, 208:210]) * b[:, 192:208].view(torch.int8))


def iq4_xs(b: Tensor) -> Tensor:
    high = (words16(b[:, 2:4]) >> torch.arange(0, 16, 2, device=b.device)) & 3  # [n, 8]
    low = fields(b[:, 4:8], (0, 4), 0xF, 1)
    scales = (low | (high << 4)).float() - 32
    return _linear(lookup(NONLINEAR4, nibbles(b[:, 8:], 16)), half(b[:, :2]) * scales)


def six_bit_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of the 8 sub-blocks. uint8 [n, 12] -> two uint8 [n, 8].

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in six bits and, in the top two, the high bits of 4-7;
    bytes 8-11 hold the low nibbles of scale and minimum 4-7.
    """
    first, second, third = packed.chunk(3, dim=1)
    scales = torch.cat([first & 63, (third & 0xF) | ((first >> 2) & 0x30)], dim=1)
    mins = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 0x30)], dim=1)
    return scales, mins


def _linear(codes: Tensor, scales: Tensor) -> Tensor:
    """codes [n, 256] times scales [n, sub-blocks]."""
    n, subs = scales.shape
    return (scales.unsqueeze(-1) * codes.view(n, subs, -1)).view(n, -1)


def _affine(codes: Tensor, scales: Tensor, mins: Tensor) -> Tensor:
    n, subs = scales.shape
    scaled = scales.unsqueeze(-1) * codes.view(n, subs, -1)
    return (scaled - mins.unsqueeze(-1)).view(n, -1)
