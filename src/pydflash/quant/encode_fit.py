"""Scale and code search for the K formats: least squares over trial scales, in a layout made for speed.

A batch of sub-blocks is held transposed, f32 [elements, sub-blocks], so that every sum runs over the first
dimension. Errors are squared errors, weighted by an importance of each element where one is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Sub-blocks to fit. x [E, m]; weight [E, m] or None for all ones; subs: sub-blocks of a super-block."""

    x: Tensor
    weight: Tensor | None
    subs: int

    def total(self, values: Tensor) -> Tensor:
        """Weighted sum over the elements of each sub-block. [E, m] -> [m]."""
        return values.sum(dim=0) if self.weight is None else (values * self.weight).sum(dim=0)

    def per_super(self, values: Tensor) -> Tensor:
        """[m] -> [n, subs]."""
        return values.view(-1, self.subs)

    def spread(self, values: Tensor) -> Tensor:
        """[n, 1] -> [m]: a super-block's number for each of its sub-blocks."""
        return values.expand(-1, self.subs).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """x is about d * scales * codes. d f32 [n, 1] (an f16 value); codes f32 [E, m]."""

    d: Tensor
    scales: Tensor  # f32 [n, subs], whole
    codes: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AffineFit(Fit):
    """x is about d * scales * codes - dmin * mins."""

    dmin: Tensor  # f32 [n, 1], an f16 value
    mins: Tensor  # f32 [n, subs], whole


def fit_affine(batch: Batch, top: int, limit: int, trials: Sequence[float]) -> AffineFit:
    """Codes 0..top, scales and minima 0..limit. A trial stretches the range to top + trial codes."""
    scale, low = _search_affine(batch, top, trials)
    d, scales = _quantise(batch.per_super(scale), limit)
    dmin, mins = _quantise(batch.per_super(-low), limit)
    codes = _affine_codes(batch, d * scales, dmin * mins, top)
    # With the whole-number scales fixed, refit the two half floats to the codes, and the codes to them.
    d, dmin = _refit_affine(batch, codes, d, dmin, scales, mins)
    codes = _affine_codes(batch, d * scales, dmin * mins, top)
    return AffineFit(d, scales, codes, dmin, mins)


def fit_symmetric(batch: Batch, levels: int, limit: int, trials: Sequence[float]) -> Fit:
    """Codes -levels..levels - 1, scales -limit..limit - 1, no minimum."""
    scale = _search_symmetric(batch, levels, trials)
    scale = batch.per_super(scale)
    extreme = scale.gather(1, scale.abs().argmax(dim=1, keepdim=True))
    d = _half(extreme / -limit)
    scales = (scale * _inverse(d)).round_().clamp_(-limit, limit - 1)
    codes = _symmetric_codes(batch, d * scales, levels)
    cross = (scales * batch.per_super(batch.total(codes * batch.x))).sum(dim=1, keepdim=True)
    square = (scales * scales * batch.per_super(batch.total(codes * codes))).sum(1, keepdim=True)
    d = torch.where(square > 0, _half(cross * _inverse(square)), d)
    return Fit(d, scales, _symmetric_codes(batch, d * scales, levels))


def _search_affine(batch: Batch, top: int, trials: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Best scale and offset (never above zero) of each sub-block, both f32 [m]."""
    x = batch.x
    low = x.amin(dim=0).clamp_(max=0)
    span = x.amax(dim=0).clamp_(min=0) - low
    count = batch.total(torch.ones_like(x))
    sum_x = batch.total(x)
    best_gain = torch.full_like(span, -torch.inf)
    best_scale, best_low = span / top, low
    inverse = _inverse(span)
    for trial in (*trials, None):
        if trial is None:  # a last step from the best so far
            codes = ((x - best_low) * _inverse(best_scale)).round_().clamp_(0, top)
        else:
            codes = torch.addcmul(-low * inverse * (top + trial), x, inverse * (top + trial))
            codes.round_().clamp_(0, top)
        sum_q, sum_qq, sum_xq = (
            batch.total(codes),
            batch.total(codes * codes),
            batch.total(codes * x),
        )
        det = count * sum_qq - sum_q * sum_q
        usable = det > 1e-5 * count * sum_qq  # else all codes are equal and say nothing
        det = _inverse(det)
        scale = (count * sum_xq - sum_x * sum_q) * det
        offset = (sum_qq * sum_x - sum_q * sum_xq) * det
        above = offset > 0
        offset = torch.where(above, torch.zeros_like(offset), offset)
        scale = torch.where(above, sum_xq * _inverse(sum_qq), scale)
        gain = scale * sum_xq + offset * sum_x  # what the fit takes off the sum of squares
        better = usable & (gain > best_gain)
        best_gain = torch.where(better, gain, best_gain)
        best_scale = torch.where(better, scale, best_scale)
        best_low = torch.where(better, offset, best_low)
    return best_scale, best_low


def _search_symmetric(batch: Batch, levels: int, trials: Sequence[float]) -> Tensor:
    x = batch.x
    extreme = x.gather(0, x.abs().argmax(dim=0, keepdim=True)).squeeze(0)
    inverse = _inverse(extreme)
    best_gain = torch.full_like(extreme, -torch.inf)
    best = extreme / -levels
    for trial in trials:
        codes = (x * (inverse * -(levels + trial))).round_().clamp_(-levels, levels - 1)
        sum_qq, sum_xq = batch.total(codes * codes), batch.total(codes * x)
        scale = sum_xq * _inverse(sum_qq)
        gain = scale * sum_xq
        better = gain > best_gain
        best_gain = torch.where(better, gain, best_gain)
        best = torch.where(better, scale, best)
    return best


def _refit_affine(
    batch: Batch, codes: Tensor, d: Tensor, dmin: Tensor, scales: Tensor, mins: Tensor
) -> tuple[Tensor, Tensor]:
    """Least squares of x = d * (scales * codes) - dmin * mins over each super-block."""
    sums = [
        batch.per_super(batch.total(v))
        for v in (codes, codes * codes, codes * batch.x, batch.x, torch.ones_like(codes))
    ]
    sum_q, sum_qq, sum_xq, sum_x, count = sums
    aa = (scales * scales * sum_qq).sum(dim=1, keepdim=True)
    ab = -(scales * mins * sum_q).sum(dim=1, keepdim=True)
    bb = (mins * mins * count).sum(dim=1, keepdim=True)
    xa = (scales * sum_xq).sum(dim=1, keepdim=True)
    xb = -(mins * sum_x).sum(dim=1, keepdim=True)
    det = aa * bb - ab * ab
    good = det > 1e-6 * aa * bb
    inverse = _inverse(det)
    new_d, new_dmin = _half((bb * xa - ab * xb) * inverse), _half((aa * xb - ab * xa) * inverse)
    good &= (new_d > 0) & (new_dmin >= 0)
    return torch.where(good, new_d, d), torch.where(good, new_dmin, dmin)


def _affine_codes(batch: Batch, scale: Tensor, low: Tensor, top: int) -> Tensor:
    inverse = _inverse(scale)
    shifted = torch.addcmul((low * inverse).view(1, -1), batch.x, inverse.view(1, -1))
    return shifted.round_().clamp_(0, top)


def _symmetric_codes(batch: Batch, scale: Tensor, levels: int) -> Tensor:
    return (batch.x * _inverse(scale).view(1, -1)).round_().clamp_(-levels, levels - 1)


def _quantise(values: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Numbers >= 0 of a super-block as a half float [n, 1] times whole numbers 0..limit [n, subs]."""
    unit = _half(values.amax(dim=1, keepdim=True) / limit)
    return unit, (values * _inverse(unit)).round_().clamp_(0, limit)


def _half(values: Tensor) -> Tensor:
    return values.clamp(-65504, 65504).to(torch.float16).float()


def _inverse(values: Tensor) -> Tensor:
    """1 / value, and 0 for 0 and for what is too small to have a finite reciprocal."""
    flipped = 1 / values
    return torch.where(flipped.isfinite(), flipped, torch.zeros_like(flipped))
