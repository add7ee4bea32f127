"""Attention of a prompt's chunk: tiles of queries over tiles of keys, which come back from the pages.

A query's sums depend on absolute positions alone: tiles of keys lie on multiples of BLOCK_N, and a tile of
which a query sees nothing leaves it as it was.
"""

import functools

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import PAGE_SIZE, AttnArgs, PagedKV, StepBatch
from pydflash.kernels.triton.attention_tile import (
    fold,
    load_keys,
    load_values,
    paged_slots,
)
from pydflash.kernels.triton.pointwise import stored
from pydflash.kernels.triton.rope_store import LOG2E
from pydflash.kernels.triton.support import shared_memory, uses_assembly

Tensor = torch.Tensor


def attention_prefill(
    q: Tensor,
    qkv: Tensor,
    kv: PagedKV,
    args: AttnArgs,
    batch: StepBatch,
    out: Tensor,
    row: int,
) -> None:
    """One prefill row, its keys stored: q [T, H, D] of `rope_store` -> out [T, H * D], times its gate."""
    D = args.head_dim
    begin, count = batch.cu_q[row], batch.cu_q[row + 1] - batch.cu_q[row]
    halves = kv.k_format != "f32" and kv.v_format != "f32"
    block_m, block_n, warps = (16, 32, 4) if not halves else _tile(D, q.device)
    attention_prefill_kernel[(triton.cdiv(count, block_m), args.heads)](
        q,
        qkv,
        kv.k,
        kv.k_scale,
        kv.v,
        kv.v_scale,
        batch.page_table,
        batch.positions,
        batch.first,
        out,
        row,
        batch.page_table.shape[1],
        begin,
        count,
        qkv.stride(0),
        HEADS=args.heads,
        GROUP=args.heads // args.kv_heads,
        D=D,
        BLOCK_D=max(32, triton.next_power_of_2(D)),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        WINDOW=args.window or 0,
        SOFTCAP=args.softcap * LOG2E if args.softcap else 0.0,
        GATED=args.gated,
        PAGE=PAGE_SIZE,
        ASM=uses_assembly(),
        num_warps=warps,
        num_stages=2,
    )


@functools.cache
def _tile(head_dim: int, device: torch.device) -> tuple[int, int, int]:
    """Queries and keys of a tile of f16 operands, and warps: what the GPU has shared memory for."""
    rows = 384  # 128 queries, 64 keys and values twice
    if shared_memory(device) < rows * 2 * max(32, triton.next_power_of_2(head_dim)) + 1024:
        return 64, 32, 4
    return 128, 64, 8


@triton.jit(do_not_specialize=["row", "pages", "begin", "count"])
def attention_prefill_kernel(
    q_ptr,
    qkv_ptr,
    k_ptr,
    k_scale_ptr,
    v_ptr,
    v_scale_ptr,
    page_table_ptr,
    positions_ptr,
    first_ptr,
    out_ptr,
    row,
    pages,
    begin,
    count,
    qkv_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    GATED: tl.constexpr,
    PAGE: tl.constexpr,
    ASM: tl.constexpr,
):
    """Grid (count / BLOCK_M, H): the last queries, which see most, first."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    i_m = tl.num_programs(0) - 1 - tl.program_id(0)
    i_h = tl.program_id(1)
    i_g = i_h // GROUP
    o_m = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    m_m = o_m < count
    o_t = (begin + o_m).to(tl.int64)
    # A chunk's positions follow one another.
    offset = tl.load(positions_ptr + begin)
    b_pos = offset + o_m
    high = offset + tl.minimum(count, (i_m + 1) * BLOCK_M)
    lowest = 0
    if first_ptr is not None:
        lowest = tl.load(first_ptr + row)
    low = lowest
    if WINDOW > 0:
        low = tl.maximum(low, offset + i_m * BLOCK_M - WINDOW + 1)

    o_d = tl.arange(0, BLOCK_D)
    o_q = (o_t * HEADS + i_h)[:, None] * D + o_d[None, :]
    m_q = m_m[:, None] & (o_d[None, :] < D)
    b_q = tl.load(q_ptr + o_q, mask=m_q, other=0.0)
    b_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BLOCK_M,), tl.float32)
    b_acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    table_ptr = page_table_ptr + row.to(tl.int64) * pages
    start = low // BLOCK_N * BLOCK_N
    for n in range(start, high, BLOCK_N):
        o_n = n + tl.arange(0, BLOCK_N)
        page, lane = paged_slots(table_ptr, o_n, low, high, PAGE)
        b_k = load_keys(
            k_ptr, k_scale_ptr, page, lane, i_g, True, KV_HEADS, D, BLOCK_D, BLOCK_N, PAGE, ASM
        )
        m_n = (o_n >= low) & (o_n < high)
        b_v = load_values(
            v_ptr, v_scale_ptr, page, lane, m_n, i_g, KV_HEADS, D, BLOCK_D, BLOCK_N, PAGE, ASM
        )
        seen = (o_n[None, :] <= b_pos[:, None]) & (o_n[None, :] >= lowest)
        if WINDOW > 0:
            seen &= b_pos[:, None] - o_n[None, :] < WINDOW
        b_max, b_sum, b_acc = fold(b_q, b_k, b_v, seen, b_max, b_sum, b_acc, SOFTCAP)

    b_out = b_acc / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
    if GATED:
        gate_ptr = qkv_ptr + o_t[:, None] * qkv_stride + (2 * i_h + 1) * D + o_d[None, :]
        b_out = b_out * tl.sigmoid(tl.load(gate_ptr, mask=m_q, other=0.0))
    tl.store(out_ptr + o_q, stored(b_out, out_ptr), mask=m_q)
