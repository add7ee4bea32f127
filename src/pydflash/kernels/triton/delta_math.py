"""Scalar functions of Gated DeltaNet, and the update of its state, which every kernel takes from here.

An update's rounding must not depend on the kernel it is in: it is written in explicit fused operations.
"""

import triton
import triton.language as tl


@triton.jit
def update(b_state, b_k, b_delta, b_decay):
    """decay * state + k delta^T, element by element. b_k and b_delta have the state's dimensions, those of 1
    included; b_decay is a scalar."""
    return tl.fma(b_k, b_delta, b_state * b_decay)


@triton.jit
def sigmoid(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, e, 1.0) / (1.0 + e)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|), by 2 atanh(s): hardware's log is coarse near 1, and a
    decay near 1 is raised to thousands of tokens."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    z = s * s
    p = 2.0 / 17.0
    p = p * z + 2.0 / 15.0
    p = p * z + 2.0 / 13.0
    p = p * z + 2.0 / 11.0
    p = p * z + 2.0 / 9.0
    p = p * z + 2.0 / 7.0
    p = p * z + 2.0 / 5.0
    p = p * z + 2.0 / 3.0
    p = p * z + 2.0
    return tl.maximum(x, 0.0) + p * s


@triton.jit
def exp_near_one(x):
    """e^x for x <= 0, to the last bit or so where the result is near 1."""
    near = tl.maximum(x, -0.5)
    p = near * (1.0 / 40320.0) + 1.0 / 5040.0
    p = p * near + 1.0 / 720.0
    p = p * near + 1.0 / 120.0
    p = p * near + 1.0 / 24.0
    p = p * near + 1.0 / 6.0
    p = p * near + 0.5
    p = p * near + 1.0
    p = p * near + 1.0
    return tl.where(x > -0.5, p, tl.exp(x))
