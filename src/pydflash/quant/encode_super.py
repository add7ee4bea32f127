"""Pack floats into the K formats: super-blocks of 256 with quantised scales and minima.

Our own search (`encode_fit`), laid out as `ggml-common.h` says. Each function takes f32 blocks [n, 256]
and an importance of the same shape or None, and returns uint8 [n, block_bytes].
"""

import torch

from pydflash.quant.encode_fit import AffineFit, Batch, Fit, fit_affine, fit_symmetric
from pydflash.quant.encode_plain import gather_fields, half_bytes

Tensor = torch.Tensor

# How far beyond the codes a trial stretches the range. More trials gain under 0.1 % of RMSE.
_COARSE = (-0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9)
_FINE = (-1.0, -0.5, 0.0, 0.4, 0.8)
_PAIRS = (0, 2, 4, 6)
_EIGHT = tuple(range(8))


def q2_k(x: Tensor, importance: Tensor | None = None) -> Tensor:
    fit = fit_affine(_batch(x, importance, 16), 3, 15, _COARSE)
    pairs = _bytes(fit.scales) | (_bytes(fit.mins) << 4)
    codes = gather_fields(_codes(fit, 0), _PAIRS, 32)
    return torch.cat([pairs, codes, half_bytes(fit.d), half_bytes(fit.dmin)], dim=1)


def q3_k(x: Tensor, importance: Tensor | None = None) -> Tensor:
    fit = fit_symmetric(_batch(x, importance, 16), 4, 32, _COARSE)
    codes, scales = _codes(fit, 4), _bytes(fit.scales + 32)
    third = gather_fields(codes >> 2, _EIGHT, 32)
    low = gather_fields(codes & 3, _PAIRS, 32)
    packed = [gather_fields(scales & 0xF, (0, 4), 8), gather_fields(scales >> 4, _PAIRS, 4)]
    return torch.cat([third, low, *packed, half_bytes(fit.d)], dim=1)


def q4_k(x: Tensor, importance: Tensor | None = None) -> Tensor:
    fit = fit_affine(_batch(x, importance, 8), 15, 63, _COARSE)
    return torch.cat([_head(fit), gather_fields(_codes(fit, 0), (0, 4), 32)], dim=1)


def q5_k(x: Tensor, importance: Tensor | None = None) -> Tensor:
    fit = fit_affine(_batch(x, importance, 8), 31, 63, _FINE)
    codes = _codes(fit, 0)
    fifth = gather_fields(codes >> 4, _EIGHT, 32)
    return torch.cat([_head(fit), fifth, gather_fields(codes & 0xF, (0, 4), 32)], dim=1)


def q6_k(x: Tensor, importance: Tensor | None = None) -> Tensor:
    fit = fit_symmetric(_batch(x, importance, 16), 32, 128, _COARSE)
    codes = _codes(fit, 32)
    low = gather_fields(codes & 0xF, (0, 4), 64)
    high = gather_fields(codes >> 4, _PAIRS, 32)
    scales = fit.scales.to(torch.int8).view(torch.uint8)
    return torch.cat([low, high, scales, half_bytes(fit.d)], dim=1)


def _batch(x: Tensor, importance: Tensor | None, subs: int) -> Batch:
    def turn(values: Tensor) -> Tensor:
        return values.reshape(-1, 256 // subs).t().contiguous()  # [elements, n * subs]

    return Batch(turn(x), None if importance is None else turn(importance), subs)


def _codes(fit: Fit, offset: int) -> Tensor:
    """Codes plus offset in reading order, uint8 [n, 256]."""
    return _bytes(fit.codes + offset).t().contiguous().view(fit.scales.shape[0], -1)


def _bytes(values: Tensor) -> Tensor:
    return values.to(torch.uint8)


def _head(fit: AffineFit) -> Tensor:
    """d, dmin and the 12 bytes of six-bit scales and minima that Q4_K and Q5_K share."""
    scales, mins = _bytes(fit.scales), _bytes(fit.mins)
    first = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    second = mins[:, :4] | ((mins[:, 4:] >> 4) << 6)
    third = (scales[:, 4:] & 0xF) | ((mins[:, 4:] & 0xF) << 4)
    return torch.cat([half_bytes(fit.d), half_bytes(fit.dmin), first, second, third], dim=1)
