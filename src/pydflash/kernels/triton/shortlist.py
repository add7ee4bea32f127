"""The best tokens of each row by logit, or by logit and noise, and the row's logsumexp.

Two launches. `scan_kernel` reads the row once and keeps the best key of every group of columns; the k best
tokens all lie in the k best groups, so `pick_kernel` looks at those again. Blocks of the sum are merged in
the order of columns: a row's result does not depend on the others.
"""

import torch
import triton
import triton.language as tl

from pydflash.kernels.triton.gumbel import gumbel
from pydflash.kernels.triton.order import id_of, number_of, pack
from pydflash.kernels.triton.select import ONE_BY_ONE as _ONE_BY_ONE
from pydflash.kernels.triton.select import extract, gather, ranks

BLOCK = 2048  # columns that one program scans
ONE_BY_ONE = tl.constexpr(_ONE_BY_ONE)


@triton.jit
def _marks(x, ids, knobs_ptr, keys_ptr, i_row, HAS_KNOBS: tl.constexpr):
    """What tokens are ordered by: the logit, or the logit by temperature with noise."""
    mark = x
    if HAS_KNOBS:  # noqa: SIM102 - one is known when compiling
        if tl.load(knobs_ptr + 2 * i_row + 1) != 0.0:
            key = tl.load(keys_ptr + i_row).to(tl.uint64, bitcast=True)
            mark = x * tl.load(knobs_ptr + 2 * i_row) + gumbel(key, ids)
    return mark


@triton.jit
def _finite(top):
    """The largest number, or 0 where there is none."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit(do_not_specialize=["stride"])
def scan_kernel(
    logits_ptr,
    knobs_ptr,
    keys_ptr,
    best_ptr,  # int64 [M, groups]
    sums_ptr,  # f32 [M, blocks, 2]: the largest, and the sum of exponentials below it
    vocab,
    stride,
    groups,
    blocks,
    HAS_KNOBS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):
    i_row, i_block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_group = i_block * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    o_col = o_group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    valid = o_col < vocab
    x = tl.load(logits_ptr + i_row * stride + o_col, mask=valid, other=float("-inf"))
    mark = _marks(x, o_col, knobs_ptr, keys_ptr, i_row, HAS_KNOBS)
    best = tl.max(pack(mark, o_col, valid), 1)
    tl.store(best_ptr + i_row * groups + o_group, best, mask=o_group < groups)
    if HAS_KNOBS:
        x = x * tl.load(knobs_ptr + 2 * i_row)
    top = tl.max(tl.max(x, 1), 0)
    total = tl.sum(tl.sum(tl.exp(x - _finite(top)), 1), 0)
    at = sums_ptr + 2 * (i_row * blocks + i_block)
    tl.store(at, top)
    tl.store(at + 1, total)


@triton.jit(do_not_specialize=["stride"])
def pick_kernel(
    logits_ptr,
    knobs_ptr,
    keys_ptr,
    best_ptr,
    sums_ptr,
    scratch_ptr,  # int64 [M, K]
    values_ptr,
    ids_ptr,
    marks_ptr,
    totals_ptr,
    vocab,
    stride,
    groups,
    blocks,
    k,
    HAS_KNOBS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,  # groups, BLOCKS and K: powers of two at least as large
    BLOCKS: tl.constexpr,
    K: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_block = tl.arange(0, BLOCKS)
    at = sums_ptr + 2 * (i_row * blocks + o_block)
    b_top = tl.load(at, mask=o_block < blocks, other=float("-inf"))
    b_sum = tl.load(at + 1, mask=o_block < blocks, other=0.0)
    top = tl.max(b_top, 0)
    total = tl.sum(b_sum * tl.exp(b_top - _finite(top)), 0)
    tl.store(
        totals_ptr + i_row,
        tl.where(total == 0.0, top, top + tl.log(tl.where(total == 0.0, 1.0, total))),
    )

    o_group = tl.arange(0, GROUPS)
    best = tl.load(best_ptr + i_row * groups + o_group, mask=o_group < groups, other=-(2**63))
    scratch = scratch_ptr + i_row * K
    chosen = extract(best, k, K) if K <= ONE_BY_ONE else gather(best, k, scratch, K)
    first = id_of(chosen) // GROUP * GROUP  # [K], beyond the vocabulary for no group
    o_col = first[:, None] + tl.arange(0, GROUP)[None, :]
    valid = (first[:, None] < vocab) & (o_col < vocab)
    row_ptr = logits_ptr + i_row * stride
    x = tl.load(row_ptr + o_col, mask=valid, other=float("-inf"))
    mark = _marks(x, o_col, knobs_ptr, keys_ptr, i_row, HAS_KNOBS)
    keys = tl.reshape(pack(mark, o_col, valid), (K * GROUP,))
    if K <= ONE_BY_ONE:
        chosen = extract(keys, k, K)
        place = tl.arange(0, K)
    else:
        chosen = gather(keys, k, scratch, K)
        place = ranks(chosen, scratch, K)
    ids = id_of(chosen)
    out, valid = i_row * k + place, place < k
    tl.store(ids_ptr + out, ids, mask=valid)
    tl.store(values_ptr + out, tl.load(row_ptr + ids, mask=valid & (ids < vocab)), mask=valid)
    if HAS_KNOBS:
        tl.store(marks_ptr + out, number_of(chosen), mask=valid)


def shortlist(
    logits: torch.Tensor, k: int, knobs: torch.Tensor, keys: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `OpTable.shortlist`. Rows may lie at any distance."""
    values, ids, marks, totals = listed(logits, k, torch.int32, knobs, keys)
    return values, ids, marks, totals


def listed(
    logits: torch.Tensor,
    k: int,
    id_type: torch.dtype,
    knobs: torch.Tensor | None = None,
    keys: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`shortlist`, or without knobs the best logits and their logsumexp; marks are then the values."""
    rows, vocab = logits.shape
    k = min(k, vocab)
    wide = triton.next_power_of_2(k)
    group = group_size(vocab, wide)
    groups, blocks = triton.cdiv(vocab, group), triton.cdiv(vocab, BLOCK)
    make = logits.new_empty
    best, sums = make((rows, groups), dtype=torch.int64), make((rows, blocks, 2))
    values, ids, totals = make((rows, k)), make((rows, k), dtype=id_type), make(rows)
    marks = values if knobs is None else make((rows, k))
    inputs = (logits, knobs, keys, best, sums)
    sizes = (vocab, logits.stride(0), groups, blocks)
    has_knobs = knobs is not None
    scan_kernel[(rows, blocks)](*inputs, *sizes, has_knobs, BLOCK, group, num_warps=4)
    power = triton.next_power_of_2(groups)
    pick_kernel[(rows,)](
        *inputs,
        make((rows, wide), dtype=torch.int64),
        values,
        ids,
        marks,
        totals,
        *sizes,
        k,
        has_knobs,
        group,
        power,
        triton.next_power_of_2(blocks),
        wide,
        num_warps=min(max(max(power, wide * group) // 512, 1), 16),
    )
    return values, ids, marks, totals


def group_size(vocab: int, k: int) -> int:
    """Columns of a group: about as many groups to sort as tokens in the k best of them."""
    group = 8
    while group < 256 and 2 * k * group * group < vocab:
        group *= 2
    return group
