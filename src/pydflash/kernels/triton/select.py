"""The k best of a tile of keys (`order`), without sorting the rest: one by one when few are wanted, else by
searching the k-th key bit by bit. Small to compile for any size, and each key's place is its own."""

import triton
import triton.language as tl

ONE_BY_ONE = 32
"""Beyond so many, 64 rounds that find the k-th key cost less."""


@triton.jit
def extract(keys, k, K: tl.constexpr):
    """int64 [K]: the `k` best of int64 [N], descending; no keys behind them."""
    o_k = tl.arange(0, K)
    chosen = tl.full((K,), -(2**63), tl.int64)
    for at in range(k):
        best = tl.max(keys, 0)
        chosen = tl.where(o_k == at, best, chosen)
        keys = tl.where(keys == best, -(2**63), keys)
    return chosen


@triton.jit
def gather(keys, k, scratch_ptr, K: tl.constexpr):
    """int64 [K]: the `k` best of int64 [N] in the order they stand, also left at `scratch_ptr` [K]."""
    least = tl.full((), -(2**63), tl.int64)
    one = tl.full((), 1, tl.int64)
    for at in range(64):
        higher = least + (one << (63 - at))
        least = tl.where(tl.sum((keys >= higher).to(tl.int32), 0) >= k, higher, least)
    kept = keys >= least
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    o_k = tl.arange(0, K)
    tl.store(scratch_ptr + o_k, tl.full((K,), -(2**63), tl.int64))
    tl.debug_barrier()
    tl.store(scratch_ptr + place, keys, mask=kept & (place < k))
    tl.debug_barrier()
    return tl.load(scratch_ptr + o_k)


@triton.jit
def ranks(keys, scratch_ptr, K: tl.constexpr):
    """int32 [K]: how many of the keys at `scratch_ptr` [K] are above each of `keys` [K]."""
    rank = tl.zeros((K,), tl.int32)
    for first in range(0, K, 32):
        others = tl.load(scratch_ptr + first + tl.arange(0, 32))
        rank += tl.sum((others[None, :] > keys[:, None]).to(tl.int32), 1)
    return rank
