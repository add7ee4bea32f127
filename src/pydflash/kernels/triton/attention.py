"""Paged attention. Exact rows here: the context in chunks, a program each, then the chunks in order.

A chunk has its place among absolute positions (kernels/chunks.py), whatever the context's length and whoever
else is in the step. Within it keys come tile by tile, and a tile's product has the same
shape for one query and for many. So a token's bits depend on its own keys alone. Several tokens of a row
share what they read of a chunk that was stored before the step; a chunk that reaches into a tree is read
once for each node, its keys through the node's ancestors, each in the lane that it would have in plain
decoding.
"""

import torch
import triton
import triton.language as tl

from pydflash.errors import UnsupportedError
from pydflash.kernels.chunks import COARSE, EARLY, FINE, chunks
from pydflash.kernels.ops import PAGE_SIZE, AttnArgs, PagedKV, RowKind, StepBatch
from pydflash.kernels.triton.attention_prefill import attention_prefill
from pydflash.kernels.triton.attention_tile import (
    fold,
    load_keys,
    load_values,
    paged_slots,
)
from pydflash.kernels.triton.pointwise import WARP, stored, sum_parts
from pydflash.kernels.triton.rope_store import LOG2E, rope_store
from pydflash.kernels.triton.sums import Sums
from pydflash.kernels.triton.support import uses_assembly

Tensor = torch.Tensor

TILE, WARPS, STAGES = 32, 4, 2
"""Keys of one product, which are part of the reduction order, and how a program works on them. Twice the keys
and warps leave one program to a multiprocessor: slower by a fifth and more."""

COMBINED = 16
"""Chunks that are summed at once. Part of the reduction order."""


def attention(
    qkv: Tensor | Sums,
    kv: PagedKV,
    args: AttnArgs,
    batch: StepBatch,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """qkv f32 [T, (H + 2G) * D] (gated: 2H) -> out_dtype [T, H * D]. Stores this step's K and V first. Of a
    step of exact rows alone, it may be in partial sums.

    Exact rows want shapes and tensors only, so that a CUDA graph can repeat them.
    """
    if args.heads % args.kv_heads:
        raise UnsupportedError(
            f"attention with {args.heads} query heads over {args.kv_heads} kv heads; the Triton "
            "kernels want whole groups: run with --ops ref"
        )
    qkv = Sums.of(qkv)
    q = rope_store(qkv, kv, args, batch)
    out = torch.empty((qkv.rows, args.heads * args.head_dim), dtype=out_dtype, device=q.device)
    spans = batch.spans
    exact = spans[0].stop if spans and spans[0].kind is RowKind.EXACT else 0
    if exact:
        _attention_exact(q, qkv, kv, args, batch, out, exact)
    for row, kind in enumerate(batch.kinds):
        if kind is RowKind.PREFILL and batch.cu_q[row + 1] > batch.cu_q[row]:
            attention_prefill(q, qkv.whole, kv, args, batch, out, row)
    return out


def _attention_exact(
    q: Tensor,
    qkv: Sums,
    kv: PagedKV,
    args: AttnArgs,
    batch: StepBatch,
    out: Tensor,
    tokens: int,
) -> None:
    """Tokens 0..tokens - 1: q [T, H, D] -> out [T, H * D]."""
    H, G, D = args.heads, args.kv_heads, args.head_dim
    group = H // G
    rows, pages = batch.page_table.shape
    count = chunks(pages * PAGE_SIZE)
    ancestors = batch.ancestors if args.causal else None
    depth = 0 if ancestors is None else ancestors.shape[1]
    tails = triton.cdiv(depth - 1, FINE) + 1 if depth else 0
    # A shape for all row counts: a group's queries of one token, and more tokens while there is room.
    wide = kv.k_format != "f32" and kv.v_format != "f32"
    block_m = max(64 if wide else 16, triton.next_power_of_2(group))
    nodes = block_m // group
    shared = rows + tokens // nodes
    parts = torch.empty((count, G, tokens * group, D), dtype=torch.float32, device=q.device)
    stats = torch.empty((count, G, tokens * group, 2), dtype=torch.float32, device=q.device)
    block_d = max(32, triton.next_power_of_2(D))
    fixed = {
        "HEADS": H, "D": D, "BLOCK_D": block_d, "WINDOW": args.window or 0, "CAUSAL": args.causal,
        "FINE": FINE, "COARSE": COARSE, "EARLY": EARLY, "GROUP": group,
    }  # fmt: skip
    attention_kernel[(shared * count + tokens * tails, G)](
        q,
        kv.k,
        kv.k_scale,
        kv.v,
        kv.v_scale,
        batch.page_table,
        batch.positions,
        batch.row_of,
        batch.starts,
        batch.base,
        batch.first,
        ancestors,
        parts,
        stats,
        tokens,
        rows,
        pages,
        count,
        depth,
        shared,
        BLOCK_M=block_m,
        BLOCK_N=TILE,
        BLOCK_R=max(32, triton.next_power_of_2(rows)),
        SOFTCAP=args.softcap * LOG2E if args.softcap else 0.0,
        PAGE=PAGE_SIZE,
        ASM=uses_assembly(),
        **fixed,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    combine_kernel[(tokens, H)](
        parts,
        stats,
        qkv.parts,
        qkv.counts,
        batch.positions,
        batch.row_of,
        batch.starts,
        batch.first,
        out,
        tokens,
        qkv.stride,
        qkv.apart,
        GATED=args.gated,
        SLOTS=qkv.slots,
        BLOCK_C=COMBINED,
        **fixed | {"BLOCK_D": max(fixed["BLOCK_D"], WARP)},
        num_warps=4,
    )


@triton.jit
def _chunk_of(position, FINE: tl.constexpr, COARSE: tl.constexpr, EARLY: tl.constexpr):
    late = EARLY // FINE + (position - EARLY) // COARSE
    return tl.where(position < EARLY, position // FINE, late)


@triton.jit
def _chunk_begin(i_c, FINE: tl.constexpr, COARSE: tl.constexpr, EARLY: tl.constexpr):
    late = EARLY + (i_c - EARLY // FINE) * COARSE
    return tl.where(i_c < EARLY // FINE, i_c * FINE, late)


@triton.jit(do_not_specialize=["tokens", "rows", "pages", "chunks", "depth", "shared"])
def attention_kernel(
    q_ptr,
    k_ptr,
    k_scale_ptr,
    v_ptr,
    v_scale_ptr,
    page_table_ptr,
    positions_ptr,
    row_of_ptr,
    starts_ptr,
    base_ptr,
    first_ptr,
    ancestors_ptr,
    parts_ptr,
    stats_ptr,
    tokens,
    rows,
    pages,
    chunks,
    depth,
    shared,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    FINE: tl.constexpr,
    COARSE: tl.constexpr,
    EARLY: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    CAUSAL: tl.constexpr,
    PAGE: tl.constexpr,
    ASM: tl.constexpr,
):
    """Grid (shared * chunks + tokens * tails, G): one chunk for up to BLOCK_M / GROUP tokens of a row.

    Writes acc f32 [chunks, G, tokens * H / G, D], not yet divided, and (max, sum) of the same shape.
    Programs of the first kind take the chunks that lie before the row's base, or all where there is no
    tree; those of the second kind take one token's chunks from the base on.
    """
    KV_HEADS: tl.constexpr = HEADS // GROUP
    NODES: tl.constexpr = BLOCK_M // GROUP
    HAS_TREE: tl.constexpr = ancestors_ptr is not None
    i_p, i_g = tl.program_id(0), tl.program_id(1)

    # Row r owns the blocks from r + starts[r] // NODES on: never too few, and none needs a sum over rows.
    i_block = i_p % shared
    i_c = i_p // shared
    o_r = tl.arange(0, BLOCK_R) + 1
    b_start = tl.load(starts_ptr + o_r, mask=o_r <= rows, other=0)
    i_r = tl.sum(((o_r <= rows) & (o_r + b_start // NODES <= i_block)).to(tl.int32), 0)
    start = tl.load(starts_ptr + i_r)
    stop = tl.load(starts_ptr + i_r + 1)
    t_from = start + (i_block - i_r - start // NODES) * NODES
    t_to = tl.minimum(tl.minimum(stop, t_from + NODES), tokens)
    if HAS_TREE:
        if i_c >= chunks:
            t_from = (i_p - shared * chunks) % tokens
            t_to = t_from + 1
            i_r = tl.load(row_of_ptr + t_from)
            base = tl.load(base_ptr + i_r)
            i_c = (i_p - shared * chunks) // tokens + _chunk_of(base, FINE, COARSE, EARLY)
            if i_c >= chunks:
                return
        elif _chunk_begin(i_c + 1, FINE, COARSE, EARLY) > tl.load(base_ptr + i_r):
            return
    if t_from >= t_to:
        return

    o_m = tl.arange(0, BLOCK_M)
    o_t = t_from + o_m // GROUP
    o_h = i_g * GROUP + o_m % GROUP
    m_m = o_t < t_to
    b_pos = tl.load(positions_ptr + o_t, mask=m_m, other=0)
    lowest = 0
    if first_ptr is not None:
        lowest = tl.load(first_ptr + i_r)
    low = lowest
    if CAUSAL:
        b_last = tl.where(m_m, b_pos, -1)
        high = tl.max(b_last, 0) + 1
    else:
        last = tl.load(positions_ptr + tl.load(starts_ptr + i_r + 1) - 1)
        b_last = tl.where(m_m, last, -1)
        high = last + 1
        if WINDOW > 0:
            high = tl.minimum(high, tl.max(tl.where(m_m, b_pos, 0), 0) + WINDOW)
    if WINDOW > 0:
        low = tl.maximum(low, tl.min(tl.where(m_m, b_pos, 2147483647), 0) - WINDOW + 1)
    low = tl.maximum(low, _chunk_begin(i_c, FINE, COARSE, EARLY))
    high = tl.minimum(high, _chunk_begin(i_c + 1, FINE, COARSE, EARLY))
    if low >= high:
        return

    o_d = tl.arange(0, BLOCK_D)
    o_q = (o_t * HEADS + o_h)[:, None] * D + o_d[None, :]
    b_q = tl.load(q_ptr + o_q, mask=m_m[:, None] & (o_d[None, :] < D), other=0.0)
    b_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BLOCK_M,), tl.float32)
    b_acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    table_ptr = page_table_ptr + i_r.to(tl.int64) * pages
    begin = low // BLOCK_N * BLOCK_N
    paged = high
    if HAS_TREE:
        base = tl.load(base_ptr + i_r)
        paged = tl.maximum(begin, tl.minimum(high, base // BLOCK_N * BLOCK_N))
    for n in range(begin, paged, BLOCK_N):
        o_n = n + tl.arange(0, BLOCK_N)
        page, lane = paged_slots(table_ptr, o_n, low, high, PAGE)
        b_k = load_keys(
            k_ptr, k_scale_ptr, page, lane, i_g, True, KV_HEADS, D, BLOCK_D, BLOCK_N, PAGE, ASM
        )
        m_n = (o_n >= low) & (o_n < high)
        b_v = load_values(
            v_ptr, v_scale_ptr, page, lane, m_n, i_g, KV_HEADS, D, BLOCK_D, BLOCK_N, PAGE, ASM
        )
        seen = _seen(o_n, b_pos, b_last, lowest, WINDOW, CAUSAL)
        b_max, b_sum, b_acc = fold(b_q, b_k, b_v, seen, b_max, b_sum, b_acc, SOFTCAP)
    if HAS_TREE:
        ancestor_ptr = ancestors_ptr + t_from.to(tl.int64) * depth
        for n in tl.range(paged, high, BLOCK_N, num_stages=1):
            o_n = n + tl.arange(0, BLOCK_N)
            m_n = (o_n >= low) & (o_n < high)
            page, lane = paged_slots(table_ptr, o_n, low, tl.minimum(high, base), PAGE)
            slot = tl.load(ancestor_ptr + o_n - base, mask=m_n & (o_n >= base), other=0)
            page = tl.where(o_n >= base, (slot // PAGE).to(tl.int64), page)
            lane = tl.where(o_n >= base, slot % PAGE, lane)
            b_k = load_keys(
                k_ptr, k_scale_ptr, page, lane, i_g, False, KV_HEADS, D, BLOCK_D, BLOCK_N, PAGE, ASM
            )
            b_v = load_values(
                v_ptr, v_scale_ptr, page, lane, m_n, i_g, KV_HEADS, D, BLOCK_D, BLOCK_N, PAGE, ASM
            )
            seen = _seen(o_n, b_pos, b_last, lowest, WINDOW, CAUSAL)
            b_max, b_sum, b_acc = fold(b_q, b_k, b_v, seen, b_max, b_sum, b_acc, SOFTCAP)

    first = (i_c * KV_HEADS + i_g).to(tl.int64) * (tokens * GROUP) + t_from * GROUP
    stats_ptr += first * 2
    tl.store(stats_ptr + o_m * 2, b_max, mask=m_m)
    tl.store(stats_ptr + o_m * 2 + 1, b_sum, mask=m_m)
    o_acc = o_m[:, None] * D + o_d[None, :]
    tl.store(parts_ptr + first * D + o_acc, b_acc, mask=m_m[:, None] & (o_d[None, :] < D))


@triton.jit
def _seen(o_n, b_pos, b_last, lowest, WINDOW: tl.constexpr, CAUSAL: tl.constexpr):
    """Which keys at positions o_n [N] the queries see: [M, N]."""
    seen = (o_n[None, :] <= b_last[:, None]) & (o_n[None, :] >= lowest)
    if WINDOW > 0:
        ahead = o_n[None, :] - b_pos[:, None]
        seen &= ahead > -WINDOW
        if not CAUSAL:
            seen &= ahead < WINDOW
    return seen


@triton.jit(do_not_specialize=["tokens", "apart"])
def combine_kernel(
    parts_ptr,
    stats_ptr,
    qkv_ptr,
    counts_ptr,
    positions_ptr,
    row_of_ptr,
    starts_ptr,
    first_ptr,
    out_ptr,
    tokens,
    qkv_stride,
    apart,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_C: tl.constexpr,
    FINE: tl.constexpr,
    COARSE: tl.constexpr,
    EARLY: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    GATED: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Grid (tokens, H): the chunks that a token sees, BLOCK_C at once, in order of position."""
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i_r = tl.load(row_of_ptr + i_t)
    position = tl.load(positions_ptr + i_t)
    low = 0
    if first_ptr is not None:
        low = tl.load(first_ptr + i_r)
    last = position
    if not CAUSAL:
        last = tl.load(positions_ptr + tl.load(starts_ptr + i_r + 1) - 1)
        if WINDOW > 0:
            last = tl.minimum(last, position + WINDOW - 1)
    if WINDOW > 0:
        low = tl.maximum(low, position - WINDOW + 1)
    begin = _chunk_of(low, FINE, COARSE, EARLY)
    end = _chunk_of(last, FINE, COARSE, EARLY) + 1

    o_d = tl.arange(0, BLOCK_D)
    m_d = o_d < D
    step = tokens.to(tl.int64) * HEADS  # from one chunk's to the next one's
    first = (i_h // GROUP) * (tokens * GROUP) + i_t * GROUP + i_h % GROUP
    top = float("-inf")
    total = 0.0
    b_acc = tl.zeros((BLOCK_D,), tl.float32)
    for c in range(begin // BLOCK_C * BLOCK_C, end, BLOCK_C):
        o_c = c + tl.arange(0, BLOCK_C)
        m_c = (o_c >= begin) & (o_c < end)
        o_part = first + o_c * step
        b_max = tl.load(stats_ptr + o_part * 2, mask=m_c, other=float("-inf"))
        b_sum = tl.load(stats_ptr + o_part * 2 + 1, mask=m_c, other=0.0)
        b_part = tl.load(
            parts_ptr + (o_part * D)[:, None] + o_d[None, :],
            mask=m_c[:, None] & m_d[None, :],
            other=0.0,
        )
        new = tl.maximum(top, tl.max(b_max, 0))
        ref = tl.where(new == float("-inf"), 0.0, new)
        old = tl.exp2(top - ref)
        b_weight = tl.exp2(b_max - ref)
        total = total * old + tl.sum(b_sum * b_weight, 0)
        b_acc = b_acc * old + tl.sum(b_part * b_weight[:, None], 0)
        top = new
    b_out = b_acc / total
    if GATED:
        o_gate = (2 * i_h + 1) * D + o_d
        at = i_t * qkv_stride + o_gate
        b_gate = sum_parts(qkv_ptr, counts_ptr, o_gate, at, apart, SLOTS, m_d)
        b_out = b_out * tl.sigmoid(b_gate)
    out_ptr += (i_t * HEADS + i_h) * D
    tl.store(out_ptr + o_d, stored(b_out, out_ptr), mask=m_d)
