"""Keys that sort as (number descending, id ascending): what argmax, top and shortlist compare.

A key is the number's bits, made to order as integers do, above 2^31 - 1 less the id. Zeros of either sign
are equal, NaN is below every number, and what is no token at all is below NaN.
"""

import triton
import triton.language as tl


@triton.jit
def pack(x, ids, valid):
    """Keys int64 of numbers f32 and ids int32."""
    plain = tl.where(x == 0.0, 0.0, tl.where(x != x, float("-inf"), x))
    bits = plain.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (bits.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    return tl.where(valid, key, -(2**63))


@triton.jit
def id_of(key):
    """Ids int32; beyond every vocabulary for what is no token."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def number_of(key):
    bits = (key >> 32).to(tl.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)
