"""Products of the experts: every block of pairs times the weights of its own expert, in one launch.

Experts of a layer have the same shape and formats, and lie anywhere: a table holds how far each one's planes
are from the first one's. A pair's sums run in the order of K, cut at places that depend on the weights'
shape alone: its bits do not depend on what else its expert gets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import Weight
from pydflash.kernels.triton.products import is_whole, store_sums, tile_sums
from pydflash.kernels.triton.route import Blocks
from pydflash.kernels.triton.support import uses_assembly
from pydflash.kernels.triton.weights import Packed, packed_of

Tensor = torch.Tensor

BUSY = 512  # programs that one token should give, where K is long enough to be cut
MANY, JOBS = 128, 2
"""From so many blocks on, a program takes so many of these: it begins with several reads that wait for each
other, which is as long as a job. Changes no bit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """The same weight of every expert. `table` int64 [7, X]: how far words, high bits, scales of the
    first and of the second segment, and the rows' scales, lie from expert 0's, in 16 bytes."""

    first: Packed
    rows: int
    table: Tensor
    splits: int
    per: int  # units of a split
    counts: Tensor  # int32 [N], `splits` for each row


@triton.jit
def _at(base_ptr, table_ptr, PLANE: tl.constexpr, X, expert):
    """`base_ptr` moved to an expert's plane."""
    items: tl.constexpr = 128 // base_ptr.dtype.element_ty.primitive_bitwidth
    return base_ptr + tl.load(table_ptr + PLANE * X + expert) * items


@triton.jit(do_not_specialize=["pairs", "blocks", "jobs"])
def expert_kernel(
    x_ptr, out_ptr, order_ptr, entries_ptr, table_ptr, row_scale_ptr,
    words0_ptr, high0_ptr, scales0_ptr, words1_ptr, high1_ptr, scales1_ptr,
    x_stride, pairs, blocks, X, rows, units, splits, per, jobs, tiles0, rows0, tiles1, rows1,
    FAN: tl.constexpr, KIND0: tl.constexpr, KIND1: tl.constexpr, BLOCK_T: tl.constexpr,
    STAGES: tl.constexpr, ASM: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """out f32 [splits, P, N] = partial sums of W x, x's row for pair p being p // FAN.

    Grid (programs, blocks): of a block's jobs, splits of a tile of rows, a program takes the next `jobs`.
    """
    i_p, i_b = tl.program_id(0), tl.program_id(1)
    held = tl.load(entries_ptr + 2 * blocks + i_b)
    if held > 0:
        expert = tl.load(entries_ptr + i_b)
        o_t = tl.arange(0, BLOCK_T)
        t_mask = o_t < held
        pair = tl.load(order_ptr + tl.load(entries_ptr + blocks + i_b) + o_t, mask=t_mask, other=0)
        row_scale = _at(row_scale_ptr, table_ptr, 6, X, expert)
        words0 = _at(words0_ptr, table_ptr, 0, X, expert)
        high0 = high0_ptr
        scales0 = scales0_ptr
        if KIND0 != 16:
            high0 = _at(high0_ptr, table_ptr, 1, X, expert)
            scales0 = _at(scales0_ptr, table_ptr, 2, X, expert)
        words1 = words1_ptr
        high1 = high1_ptr
        scales1 = scales1_ptr
        if KIND1 != 0:
            words1 = _at(words1_ptr, table_ptr, 3, X, expert)
            if KIND1 != 16:
                high1 = _at(high1_ptr, table_ptr, 4, X, expert)
                scales1 = _at(scales1_ptr, table_ptr, 5, X, expert)
        o_n = tl.arange(0, 64)
        for job in range(i_p * jobs, tl.minimum((i_p + 1) * jobs, (tiles0 + tiles1) * splits)):
            i_n, i_s = job // splits, job % splits
            first = i_s * per
            count = tl.minimum(per, units - first)
            if i_n < tiles0:
                n = i_n * 64 + o_n
                scale = tl.load(row_scale + n, mask=n < rows0, other=0.0)
                acc = tile_sums(
                    words0, high0, scales0, i_n * 64, tiles0, units, first, count,
                    x_ptr, x_stride, pair // FAN, t_mask, KIND0, 64, BLOCK_T, STAGES, ASM, WHOLE,
                )  # fmt: skip
                store_sums(acc, scale, n, rows0, 0, out_ptr, i_s, pairs, rows, pair, t_mask)
            elif KIND1 != 0:
                n = (i_n - tiles0) * 64 + o_n
                scale = tl.load(row_scale + rows0 + n, mask=n < rows1, other=0.0)
                acc = tile_sums(
                    words1, high1, scales1, (i_n - tiles0) * 64, tiles1, units, first, count,
                    x_ptr, x_stride, pair // FAN, t_mask, KIND1, 64, BLOCK_T, STAGES, ASM, WHOLE,
                )  # fmt: skip
                store_sums(acc, scale, n, rows1, rows0, out_ptr, i_s, pairs, rows, pair, t_mask)


def stack(weights: Sequence[Weight], used: int) -> Stack:
    """Tell where the experts lie; `used` are busy with one token."""
    packs = [packed_of(w) for w in weights]
    first = packs[0]
    if any(_shape(p) != _shape(first) for p in packs) or len(first.segments) > 2:
        raise UnsupportedError(
            "the experts of a layer differ in shape or format, which these kernels cannot multiply by; "
            "run it with --ops ref"
        )
    if any(w.bias is not None or w.scale is not None for w in weights):
        raise UnsupportedError(
            "experts with biases or scales have no Triton kernel; run it with --ops ref"
        )
    planes = [_planes(p) for p in packs]
    table = [[_apart(p[plane], planes[0][plane]) for p in planes] for plane in range(7)]
    tiles = sum(s.tiles for s in first.segments)
    wanted = max(1, min(-(-BUSY // (tiles * used)), first.units // 4))
    per = -(-first.units // (2 * wanted)) * 2
    splits = -(-first.units // per)
    rows = weights[0].rows
    device = first.row_scale.device
    return Stack(
        first=first,
        rows=rows,
        table=torch.tensor(table, dtype=torch.int64, device=device),
        splits=splits,
        per=per,
        counts=torch.full((rows,), splits, dtype=torch.int32, device=device),
    )


def product(x: Tensor, stacked: Stack, blocks: Blocks, fan: int) -> Tensor:
    """x f16 [P / fan, K padded] -> f32 [splits, P, N], partial sums in order of K."""
    first = stacked.first
    pairs, X = len(blocks.order), stacked.table.shape[1]
    out = torch.empty(stacked.splits, pairs, stacked.rows, dtype=torch.float32, device=x.device)
    one, two = first.segments[0], first.segments[-1]
    tiles = sum(s.tiles for s in first.segments)
    count = blocks.entries.shape[1]
    planes = [
        x if p is None else p
        for s in (one, two)
        for p in (s.planes.words, s.planes.high, s.planes.scales)
    ]
    jobs = JOBS if count >= MANY else 1
    expert_kernel[(triton.cdiv(tiles * stacked.splits, jobs), count)](
        x,
        out,
        blocks.order,
        blocks.entries,
        stacked.table,
        first.row_scale,
        *planes,
        x.stride(0),
        pairs,
        count,
        X,
        stacked.rows,
        first.units,
        stacked.splits,
        stacked.per,
        jobs,
        one.tiles,
        one.planes.rows,
        two.tiles if len(first.segments) > 1 else 0,
        two.planes.rows,
        FAN=fan,
        KIND0=one.planes.kind,
        KIND1=two.planes.kind if len(first.segments) > 1 else 0,
        BLOCK_T=blocks.size,
        STAGES=3,
        ASM=uses_assembly(),
        WHOLE=is_whole(blocks.size, 4, x.device),
        num_warps=4,
    )
    return out


def _planes(packed: Packed) -> list[Tensor | None]:
    one, two = packed.segments[0].planes, packed.segments[-1].planes
    return [one.words, one.high, one.scales, two.words, two.high, two.scales, packed.row_scale]


def _apart(here: Tensor | None, base: Tensor | None) -> int:
    if here is None or base is None:
        return 0
    apart = here.data_ptr() - base.data_ptr()
    if apart % 16:
        raise UnsupportedError("an expert's weights lie at an odd address; run it with --ops ref")
    return apart // 16


def _shape(packed: Packed) -> tuple[object, ...]:
    return packed.units, *((s.planes.kind, s.planes.rows) for s in packed.segments)
