"""What a drafter's scores are worth, by the map that `spec.calibration` learned.

In float64 until the result, which is within f32's last bit of the host's.
"""

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor


@triton.jit
def _moved(shift_ptr, line, odds, place, knot, bins):
    left = tl.load(shift_ptr + line * bins + knot)
    right = tl.load(shift_ptr + line * bins + knot + 1)
    moved = odds + left + (right - left) * (place - knot.to(tl.float64))
    return -tl.log(1.0 + tl.exp(-moved))


@triton.jit
def calibrate_kernel(
    values_ptr, totals_ptr, shift_ptr, out_ptr, half, S, K, lines, bins,
    LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a slot: its candidates on the best path, and off it `half` further on."""
    i = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    mask = o < K
    logp = tl.load(values_ptr + i * K + o, mask=mask, other=0.0) - tl.load(totals_ptr + i)
    never = ~(logp > float("-inf"))  # a damaged drafter's NaN as well
    logp = tl.where(never, float("-inf"), logp)
    # The bounds as the host has them, not as f32 would.
    near = tl.full((), -1.0, tl.float64) / 100000
    wide = tl.minimum(tl.maximum(logp.to(tl.float64), -60.0), near)
    odds = wide - tl.log(1.0 - tl.exp(wide))
    place = tl.minimum(tl.maximum(odds, LOW), bins - 1.0 + LOW) - LOW
    knot = tl.minimum(place.to(tl.int32), bins - 2)
    line = tl.minimum((i % S).to(tl.int32), lines - 2)
    on = _moved(shift_ptr, line, odds, place, knot, bins)
    off = _moved(shift_ptr, lines - 1, odds, place, knot, bins)
    tl.store(out_ptr + i * K + o, tl.where(never, logp, on.to(tl.float32)), mask=mask)
    tl.store(out_ptr + half + i * K + o, tl.where(never, logp, off.to(tl.float32)), mask=mask)


def calibrate(values: Tensor, totals: Tensor, shift: Tensor, low: int) -> Tensor:
    """See `OpTable.calibrate`."""
    R, S, K = values.shape
    out = values.new_empty((2, R, S, K))
    calibrate_kernel[(R * S,)](
        values,
        totals,
        shift,
        out,
        R * S * K,
        S,
        K,
        len(shift),
        shift.shape[1],
        low,
        triton.next_power_of_2(K),
        num_warps=1,
    )
    return out
