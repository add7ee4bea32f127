"""Gumbel noise of (key, token id), from the counter and finaliser of `sampling/noise.py`, in f32.

Within 1e-5 of the host's float64: whatever needs more is decided on the host.
"""

import triton
import triton.language as tl


@triton.jit
def gumbel(key, ids):
    """f32 noise for a key uint64 and ids int32."""
    z = key + (ids + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = (z ^ (z >> 31)) >> 12
    low = (z.to(tl.int64).to(tl.float32) + 0.5) * 2.0**-52  # u, good to f32 when it is small
    rest = ((2**52 - 1 - z.to(tl.int64)).to(tl.float32) + 0.5) * 2.0**-52  # 1 - u, likewise
    # -log(1 - rest) by the series of the inverse hyperbolic tangent: no cancellation near u = 1.
    s = rest / (2.0 - rest)
    q = s * s
    tail = 1.0 / 13.0 + q * (1.0 / 15.0)
    tail = 1.0 / 9.0 + q * (1.0 / 11.0 + q * tail)
    tail = 1.0 / 5.0 + q * (1.0 / 7.0 + q * tail)
    near_one = 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * tail))
    exponential = tl.where(rest < 0.5, near_one, -tl.log(low))
    return -tl.log(exponential)
