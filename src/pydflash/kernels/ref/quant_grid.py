"""Decoders of the IQ formats: groups of 4 or 8 values looked up in a fixed grid, signs and scales apart.

Each function takes blocks uint8 [n, block_bytes] and returns f32 [n, 256].
Source: the block structs and grids of `ggml-common.h`.
"""

import torch

from pydflash.kernels.ref.quant_bits import Tensor, bits, fields, half, words16, words32
from pydflash.kernels.ref.quant_tables import grid

_DELTA = 0.125  # offset of the one-bit grids


def iq2_xxs(b: Tensor) -> Tensor:
    words = words32(b[:, 2:]).view(-1, 8, 2)  # four grid indices; four sign codes and a scale
    index = torch.cat([(words[..., 0:1] >> s) & 0xFF for s in (0, 8, 16, 24)], dim=-1)  # [n, 8, 4]
    scale = half(b[:, :2]) * (0.5 + (words[..., 1] >> 28).float()) * 0.25
    return _scaled(scale, _pick("IQ2_XXS", index), _even_signs(words[..., 1]))


def iq2_xs(b: Tensor) -> Tensor:
    codes = words16(b[:, 2:66])
    scale = half(b[:, :2]) * (0.5 + fields(b[:, 66:74], (0, 4), 0xF, 1)) * 0.25
    return _scaled(scale, _pick("IQ2_XS", codes & 511), _parity_signs(codes >> 9))


def iq2_s(b: Tensor) -> Tensor:
    high = fields(b[:, 66:74], (0, 2, 4, 6), 3, 1).int()
    scale = half(b[:, :2]) * (0.5 + fields(b[:, 74:82], (0, 4), 0xF, 1)) * 0.25
    return _scaled(scale, _pick("IQ2_S", b[:, 2:34] | (high << 8)), _signs(bits(b[:, 34:66])))


def iq3_xxs(b: Tensor) -> Tensor:
    words = words32(b[:, 66:98])
    scale = half(b[:, :2]) * (0.5 + (words >> 28).float()) * 0.5
    return _scaled(scale, _pick("IQ3_XXS", b[:, 2:66].int()), _even_signs(words))


def iq3_s(b: Tensor) -> Tensor:
    high = bits(b[:, 66:74]).int()
    scale = half(b[:, :2]) * (1 + 2 * fields(b[:, 106:110], (0, 4), 0xF, 1))
    return _scaled(scale, _pick("IQ3_S", b[:, 2:66] | (high << 8)), _signs(bits(b[:, 74:106])))


def iq1_s(b: Tensor) -> Tensor:
    high = words16(b[:, 34:50])  # three bits for each of four indices, a scale, the delta's sign
    scale = half(b[:, :2]) * (2 * ((high >> 12) & 7) + 1)
    index = b[:, 2:34] | (fields(high, (0, 3, 6, 9), 7, 1) << 8)
    delta = torch.where(high & 0x8000 == 0, _DELTA, -_DELTA)  # [n, 8]
    return _shifted(scale, _pick("IQ1_S", index), delta)


def iq1_m(b: Tensor) -> Tensor:
    words = words16(b[:, 48:56])  # 3-bit scales; the top nibbles together are the f16 of the block
    nibble = words >> 12
    pattern = nibble[:, 0] | (nibble[:, 1] << 4) | (nibble[:, 2] << 8) | (nibble[:, 3] << 12)
    d = pattern.to(torch.int16).view(torch.float16).float().unsqueeze(1)
    scale = d * (2 * fields(words, (0, 3, 6, 9), 7, 1) + 1)  # [n, 16]
    high = fields(b[:, 32:48], (0, 4), 0xF, 1)
    index = b[:, :32] | ((high & 7).int() << 8)
    delta = torch.where(high & 8 == 0, _DELTA, -_DELTA)  # [n, 32]
    return _shifted(scale, _pick("IQ1_S", index), delta)


def _pick(name: str, index: Tensor) -> Tensor:
    """Grid rows, flat: [n, ...] -> f32 [n, 256]."""
    return grid(name, index.device)[index.int()].view(index.shape[0], -1)


def _signs(flags: Tensor) -> Tensor:
    return 1.0 - 2.0 * flags.float()


def _parity_signs(codes: Tensor) -> Tensor:
    """Seven stored signs and an eighth that makes their number even. [n, k] of 0..127 -> f32 [n, 8 k]."""
    flags = fields(codes, range(7), 1, 1).view(codes.shape[0], -1, 7)
    last = flags.sum(dim=-1, keepdim=True) & 1
    return _signs(torch.cat([flags, last], dim=-1).view(codes.shape[0], -1))


def _even_signs(words: Tensor) -> Tensor:
    """Four seven-bit sign codes in the low 28 bits of each word. int64 [n, 8] -> f32 [n, 256]."""
    return _parity_signs(fields(words, (0, 7, 14, 21), 127, 1))


def _scaled(scales: Tensor, values: Tensor, signs: Tensor) -> Tensor:
    n, subs = scales.shape
    return (scales.unsqueeze(-1) * values.view(n, subs, -1)).view(n, -1) * signs


def _shifted(scales: Tensor, values: Tensor, delta: Tensor) -> Tensor:
    n = scales.shape[0]
    moved = (values.view(n, delta.shape[1], -1) + delta.unsqueeze(-1)).view(n, scales.shape[1], -1)
    return (scales.unsqueeze(-1) * moved).view(n, -1)
