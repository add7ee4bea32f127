"""Products of many tokens: the weight decoded once to f16, then a matrix product that reuses it.

A prompt chunk of few tokens is cheaper as exact rows (`products`). K is summed in one order whatever the
tile. Chunks lie on a fixed grid of positions, so that a prompt always meets the same ones.
"""

import torch
import triton
import triton.language as tl

from pydflash.kernels.triton import decode
from pydflash.kernels.triton.support import uses_assembly
from pydflash.kernels.triton.weights import TILE, Packed

Tensor = torch.Tensor

_F16 = tl.constexpr(decode.F16)

_MOST_DECODED = 1 << 28
"""Bytes of decoded weight held at once; a longer one is decoded and multiplied in pieces."""


@triton.jit
def decode_kernel(
    words_ptr, high_ptr, scales_ptr, out_ptr, tile0, units, KIND: tl.constexpr, ASM: tl.constexpr
):
    """out f16 [rows of tiles, units * 128], in order of K. Grid (tiles, units)."""
    i_tile, unit = tl.program_id(0), tl.program_id(1)
    block = (tile0 + i_tile).to(tl.int64) * units + unit
    r = tl.arange(0, 64)
    out = out_ptr + (i_tile * 64 + r).to(tl.int64)[:, None] * (units * 128) + unit * 128
    c = tl.arange(0, 16)[None, :]
    if KIND == _F16:
        k = tl.arange(0, 128)[None, :]
        tl.store(out + k, tl.load(words_ptr + block * 8192 + r[:, None] * 128 + k))
    else:
        words: tl.constexpr = decode.tile_words(KIND)
        scales: tl.constexpr = decode.scale_words(KIND)
        at = r[:, None] * 16 + c
        w, h = words_ptr + block * words + at, high_ptr + block * 1024 + at
        s = scales_ptr + ((block * 64 + r) * scales)[:, None] + tl.arange(0, scales)[None, :]
        v0, v1, v2, v3, v4, v5, v6, v7 = decode.weights(w, h, s, KIND, ASM)
        o = out + c
        tl.store(o, v0)
        tl.store(o + 16, v1)
        tl.store(o + 32, v2)
        tl.store(o + 48, v3)
        tl.store(o + 64, v4)
        tl.store(o + 80, v5)
        tl.store(o + 96, v6)
        tl.store(o + 112, v7)


@triton.jit(do_not_specialize=["tokens"])
def matmul_kernel(
    x_ptr, w_ptr, row_scale_ptr, out_ptr, tokens, count, K, rows,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out f32 [T, rows] columns 0..count = x f16 [T, K] times w f16 [count, K], scaled by row."""
    programs_t = tl.cdiv(tokens, BLOCK_T)
    programs_n = tl.cdiv(count, BLOCK_N)
    # Groups of tiles that share inputs run together, so that these stay in the cache.
    i = tl.program_id(0)
    group = i // (GROUP * programs_n)
    size = tl.minimum(programs_t - group * GROUP, GROUP)
    i_t = group * GROUP + i % (GROUP * programs_n) % size
    i_n = i % (GROUP * programs_n) // size
    o_t = i_t * BLOCK_T + tl.arange(0, BLOCK_T)
    o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    # Rows beyond the end read another row's numbers, and are not stored.
    x = x_ptr + (o_t % tokens).to(tl.int64)[:, None] * K + o_k[None, :]
    w = w_ptr + (o_n % count).to(tl.int64)[None, :] * K + o_k[:, None]
    acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for _ in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(x), tl.load(w), acc)
        x += BLOCK_K
        w += BLOCK_K
    acc *= tl.load(row_scale_ptr + o_n, mask=o_n < count, other=0.0)[None, :]
    out = out_ptr + o_t.to(tl.int64)[:, None] * rows + o_n[None, :]
    tl.store(out, acc, mask=(o_t < tokens)[:, None] & (o_n < count)[None, :])


def product(x: Tensor, packed: Packed, rows: int) -> Tensor:
    """x f16 [T, K padded] -> f32 [1, T, N]: W x, in the form of `products.product`."""
    T, K = x.shape
    out = torch.empty(1, T, rows, dtype=torch.float32, device=x.device)
    assert not packed.is_table
    most = max(TILE, _MOST_DECODED // (2 * K) // TILE * TILE)
    longest = max(s.tiles for s in packed.segments) * TILE
    decoded = torch.empty(min(most, longest), K, dtype=torch.float16, device=x.device)
    for segment in packed.segments:
        planes = segment.planes
        for start in range(0, planes.rows, most):
            count = min(most, planes.rows - start)
            decode_kernel[(-(-count // TILE), packed.units)](
                planes.words,
                planes.words if planes.high is None else planes.high,
                planes.words if planes.scales is None else planes.scales,
                decoded,
                start // TILE,
                packed.units,
                KIND=planes.kind,
                ASM=uses_assembly(),
            )
            row0 = segment.row0 + start
            block_t, block_n = 128, 256
            grid = triton.cdiv(T, block_t) * triton.cdiv(count, block_n)
            matmul_kernel[(grid,)](
                x,
                decoded,
                packed.row_scale[row0:],
                out[:, :, row0:],
                T,
                count,
                K,
                rows,
                BLOCK_T=block_t,
                BLOCK_N=block_n,
                BLOCK_K=64,
                GROUP=8,
                num_warps=8,
                num_stages=3,
            )
    return out
