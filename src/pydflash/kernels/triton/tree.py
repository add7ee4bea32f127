"""Draft trees grown on the device, best first.

One warp grows a tree, node for node as the host's builder does: sums in float64 in the same order, and of
equal weights the one found first. Sizes are shapes; how many nodes each sequence gets is read on the device.
"""

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import Guesses, Trees

Tensor = torch.Tensor


@triton.jit
def order_kernel(pair_ptr, logp_ptr, ids_ptr, K, BLOCK: tl.constexpr):
    """Candidates of one line of pair scores, best first. A program a line."""
    i_line = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    row = tl.load(pair_ptr + i_line * K + o, mask=o < K, other=float("-inf"))
    row = tl.where(row == row, row, float("-inf"))  # a damaged drafter proposes nothing
    column = tl.load(pair_ptr + i_line * K + o, mask=o < K, other=float("-inf"))
    column = tl.where(column == column, column, float("-inf"))
    above = (column[None, :] > row[:, None]) | (
        (column[None, :] == row[:, None]) & (o[None, :] < o[:, None])
    )
    rank = tl.sum(above.to(tl.int32), 1)
    tl.store(logp_ptr + i_line * K + rank, row, mask=o < K)
    tl.store(ids_ptr + i_line * K + rank, o, mask=o < K)


@triton.jit
def _line(i_r, slot, candidate, off, S, K, IS_PAIR: tl.constexpr, OFF: tl.constexpr):
    """Where the row for a slot begins: below a candidate, or among the scores of or off the best path."""
    if IS_PAIR:
        return ((i_r * S + slot) * K + candidate) * K
    else:
        return (i_r * S + slot) * K + off * OFF


@triton.jit
def _offer(weights, metas, found, weight, parent, slot, candidate, off, at, valid):
    """Enter a node that may come next. What it is: its parent, slot, the parent's candidate, whether off
    the best path, and its place in the row."""
    o = tl.arange(0, weights.shape[0])
    valid = valid & (weight > float("-inf"))
    here = (o == found) & valid
    meta = ((((parent.to(tl.int64) << 8) | slot) << 12 | candidate) << 1 | off) << 12 | at
    weights = tl.where(here, weight, weights)
    metas = tl.where(here, meta, metas)
    return weights, metas, found + valid.to(tl.int32)


@triton.jit(do_not_specialize=["off_stride"])
def grow_kernel(
    roots_ptr, table_ptr, logp_ptr, ids_ptr, budgets_ptr, tau_ptr,
    tokens_ptr, parents_ptr, depth_ptr, weights_ptr, counts_ptr,
    S, K, off_stride, nodes, top_k,
    IS_PAIR: tl.constexpr, CHAIN: tl.constexpr, HAS_TAU: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A program, one warp, a tree. BLOCK holds two nodes to come for every node."""
    i_r = tl.program_id(0).to(tl.int64)
    budget = tl.minimum(tl.load(budgets_ptr + i_r), nodes - 1)
    out = i_r * nodes
    o_n = tl.arange(0, BLOCK_N)
    tl.store(
        tokens_ptr + out + o_n, tl.where(o_n == 0, tl.load(roots_ptr + i_r), 0), mask=o_n < nodes
    )
    tl.store(parents_ptr + out + o_n, tl.full((BLOCK_N,), -1, tl.int32), mask=o_n < nodes)
    tl.store(depth_ptr + out + o_n, tl.zeros((BLOCK_N,), tl.int32), mask=o_n < nodes)
    tl.store(weights_ptr + out + o_n, tl.zeros((BLOCK_N,), tl.float64), mask=o_n < nodes)
    tl.debug_barrier()

    weights = tl.full((BLOCK,), float("-inf"), tl.float64)
    metas = tl.zeros((BLOCK,), tl.int64)
    zero = tl.zeros((), tl.int32)
    found = zero
    count = zero + 1
    weight = tl.zeros((), tl.float64)
    floor = tl.full((), float("-inf"), tl.float64)
    if HAS_TAU:
        best = tl.load(logp_ptr + _line(i_r, zero, zero, zero, S, K, IS_PAIR, off_stride))
        floor = best.to(tl.float64) - tl.maximum(tl.load(tau_ptr), 0.0)

    candidate = zero
    if CHAIN:
        alive = zero == 0
        for slot in range(S):
            line = _line(i_r, slot + zero, candidate, zero, S, K, IS_PAIR, off_stride)
            first = tl.load(logp_ptr + line).to(tl.float64)
            reached = weight + first
            alive = alive & (slot < budget) & (reached > float("-inf")) & (reached >= floor)
            chosen = zero
            if IS_PAIR:
                chosen = tl.load(ids_ptr + line)
            token = tl.load(table_ptr + (i_r * S + slot) * K + chosen)
            tl.store(tokens_ptr + out + count, token, mask=alive)
            tl.store(parents_ptr + out + count, slot, mask=alive)
            tl.store(depth_ptr + out + count, slot + 1, mask=alive)
            tl.store(weights_ptr + out + count, reached, mask=alive)
            more = alive & (top_k > 1)
            second = tl.load(logp_ptr + line + 1, mask=more, other=0.0).to(tl.float64)
            weights, metas, found = _offer(
                weights,
                metas,
                found,
                reached - first + second,
                slot + zero,
                slot,
                candidate,
                0,
                1,
                more,
            )
            weight = tl.where(alive, reached, weight)
            candidate = tl.where(alive, chosen, candidate)
            count += alive.to(tl.int32)
    below = count - 1
    deeper = below < S
    line = _line(i_r, below, candidate, zero, S, K, IS_PAIR, off_stride)
    first = tl.load(logp_ptr + line, mask=deeper, other=0.0).to(tl.float64)
    weights, metas, found = _offer(
        weights, metas, found, weight + first, below, below, candidate, 0, 0, deeper
    )

    o = tl.arange(0, BLOCK)
    for _ in range(nodes - 1):
        weight = tl.max(weights, 0)
        place = tl.min(tl.where(weights == weight, o, BLOCK), 0)
        alive = (count <= budget) & (weight > float("-inf")) & (weight >= floor)
        meta = tl.max(tl.where(o == place, metas, 0), 0)
        weights = tl.where((o == place) & alive, float("-inf"), weights)
        at = (meta & 0xFFF).to(tl.int32)
        off = ((meta >> 12) & 1).to(tl.int32)
        candidate = ((meta >> 13) & 0xFFF).to(tl.int32)
        slot = ((meta >> 25) & 0xFF).to(tl.int32)
        parent = (meta >> 33).to(tl.int32)
        line = _line(i_r, slot, candidate, off, S, K, IS_PAIR, off_stride)
        chosen = at
        if IS_PAIR:
            chosen = tl.load(ids_ptr + line + at)
        token = tl.load(table_ptr + (i_r * S + slot) * K + chosen)
        tl.store(tokens_ptr + out + count, token, mask=alive)
        tl.store(parents_ptr + out + count, parent, mask=alive)
        tl.store(depth_ptr + out + count, slot + 1, mask=alive)
        tl.store(weights_ptr + out + count, weight, mask=alive)
        more = alive & (at + 1 < top_k)
        own = tl.load(logp_ptr + line + at).to(tl.float64)
        other = tl.load(logp_ptr + line + at + 1, mask=more, other=0.0).to(tl.float64)
        weights, metas, found = _offer(
            weights, metas, found, weight - own + other, parent, slot, candidate, off, at + 1, more
        )
        deeper = alive & (slot + 1 < S)
        off = tl.where(at == 0, off, 1)
        line = _line(i_r, slot + 1, chosen, off, S, K, IS_PAIR, off_stride)
        first = tl.load(logp_ptr + line, mask=deeper, other=0.0).to(tl.float64)
        weights, metas, found = _offer(
            weights, metas, found, weight + first, count, slot + 1, chosen, off, 0, deeper
        )
        count += alive.to(tl.int32)
    tl.store(counts_ptr + i_r, count)


def grow_trees(
    guesses: Guesses, budgets: Tensor, nodes: int, top_k: int, chain: bool, tau: Tensor | None
) -> Trees:
    """See `OpTable.grow_trees`. Up to 255 slots and 4,095 candidates."""
    R, S, K = guesses.tokens.shape
    make = guesses.tokens.new_empty
    tokens, parents, depth = make((R, nodes)), make((R, nodes)), make((R, nodes))
    weights, counts = make((R, nodes), dtype=torch.float64), make(R)
    ids, off_stride = guesses.tokens, 0
    if guesses.pair is not None:
        logp, ids = torch.empty_like(guesses.pair), make(guesses.pair.shape)
        order_kernel[(R * S * K,)](
            guesses.pair, logp, ids, K, triton.next_power_of_2(K), num_warps=1
        )
    else:
        assert guesses.logp is not None
        logp = guesses.logp
        if guesses.off is not None:
            off_stride = (guesses.off.data_ptr() - logp.data_ptr()) // 4
    grow_kernel[(R,)](
        guesses.roots,
        guesses.tokens,
        logp,
        ids,
        budgets,
        weights if tau is None else tau,
        tokens,
        parents,
        depth,
        weights,
        counts,
        S,
        K,
        off_stride,
        nodes,
        min(top_k, K),
        guesses.pair is not None,
        chain,
        tau is not None,
        triton.next_power_of_2(2 * nodes + 2),
        triton.next_power_of_2(nodes),
        num_warps=1,
    )
    return Trees(tokens=tokens, parents=parents, depth=depth, counts=counts, weights=weights)
