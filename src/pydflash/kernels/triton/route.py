"""Which experts a token goes to, and which tokens an expert gets: on the device, sizes known from shapes.

A pair is (token, rank of the expert among its token's): number token * used + rank. Pairs of an expert stand
together in `order`, by number, and are taken in blocks; the list of blocks has a place for each that there
could be, most of them empty.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import MIN_WEIGHT_SUM, MoeArgs
from pydflash.kernels.triton.order import id_of, number_of, pack
from pydflash.kernels.triton.select import extract

Tensor = torch.Tensor

_LEAST = tl.constexpr(MIN_WEIGHT_SUM)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pairs by expert: order int32 [P]; entries int32 [3, blocks] of expert, first place in `order`, and
    pairs (0: empty). No block has more than `size` pairs."""

    order: Tensor
    entries: Tensor
    size: int


@triton.jit
def route_kernel(
    logits_ptr, x_ptr, gate_ptr, chosen_ptr, weights_ptr, shared_ptr,
    X, E, width, used, scale,
    IS_SIGMOID: tl.constexpr, NORMALISE: tl.constexpr, HAS_GATE: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_E: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A program a token: its experts, best first, their weights, and that of the shared expert."""
    i_t = tl.program_id(0).to(tl.int64)
    o_x = tl.arange(0, BLOCK_X)
    logits = tl.load(logits_ptr + i_t * X + o_x, mask=o_x < X, other=float("-inf"))
    if IS_SIGMOID:
        chances = 1.0 / (1.0 + tl.exp(-logits))
    else:
        chances = tl.exp(logits - tl.max(logits, 0))
        chances = chances / tl.sum(chances, 0)
    chosen = extract(pack(chances, o_x, o_x < X), used, K)
    o_k = tl.arange(0, K)
    weights = tl.where(o_k < used, number_of(chosen), 0.0)
    if NORMALISE:
        weights = weights / tl.maximum(tl.sum(weights, 0), _LEAST)
    tl.store(chosen_ptr + i_t * used + o_k, id_of(chosen), mask=o_k < used)
    tl.store(weights_ptr + i_t * used + o_k, weights * scale, mask=o_k < used)
    if HAS_GATE:
        o_e = tl.arange(0, BLOCK_E)
        x = tl.load(x_ptr + i_t * width + o_e, mask=o_e < E, other=0.0).to(tl.float32)
        gate = tl.sum(x * tl.load(gate_ptr + o_e, mask=o_e < E, other=0.0), 0)
        tl.store(shared_ptr + i_t, 1.0 / (1.0 + tl.exp(-gate)))


@triton.jit(do_not_specialize=["pairs", "blocks"])
def group_kernel(
    chosen_ptr, order_ptr, entries_ptr, pairs, blocks,
    BY_PAIR: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program an expert: places of its pairs, and its blocks.

    The block that begins at place p of `order` has number p where there are few pairs (BY_PAIR); else an
    expert's blocks begin at its own number plus the whole blocks that the pairs before it would fill, which
    leaves room for its last one.
    """
    i_x = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    before = 0
    count = 0
    for first in range(0, pairs, BLOCK):
        at = first + o
        expert = tl.load(chosen_ptr + at, mask=at < pairs, other=2**30)
        before += tl.sum((expert < i_x).to(tl.int32), 0)
        count += tl.sum((expert == i_x).to(tl.int32), 0)
    place = before
    for first in range(0, pairs, BLOCK):
        at = first + o
        mine = tl.load(chosen_ptr + at, mask=at < pairs, other=2**30) == i_x
        own = mine.to(tl.int32)
        tl.store(order_ptr + place + tl.cumsum(own, 0) - 1, at, mask=mine)
        place += tl.sum(own, 0)
    if BY_PAIR:
        number, step, end = before, 1, before + count
    else:
        number, step = i_x + before // SIZE, SIZE
        end = before + SIZE * (i_x + 1 + (before + count) // SIZE - number)
    for start in range(before, end, step):
        held = tl.maximum(tl.minimum(before + count - start, SIZE), 0)
        if BY_PAIR:
            held = tl.where((start - before) % SIZE == 0, held, 0)
        tl.store(entries_ptr + number, i_x)
        tl.store(entries_ptr + blocks + number, start)
        tl.store(entries_ptr + 2 * blocks + number, held)
        number += 1


def route(logits: Tensor, x: Tensor, args: MoeArgs) -> tuple[Tensor, Tensor, Tensor]:
    """logits f32 [T, X], x f16 [T, width] -> experts int32 [T, used], weights f32 [T, used], and the
    shared expert's f32 [T] (not written when it has no gate)."""
    T, X = logits.shape
    chosen = torch.empty(T, args.used, dtype=torch.int32, device=logits.device)
    weights = torch.empty(T, args.used, dtype=torch.float32, device=logits.device)
    shared = torch.empty(T, dtype=torch.float32, device=logits.device)
    gate = args.shared_gate
    E = args.router.cols
    route_kernel[(T,)](
        logits,
        x,
        shared if gate is None else gate,
        chosen,
        weights,
        shared,
        X,
        E,
        x.stride(0),
        args.used,
        args.scale,
        args.sigmoid,
        args.normalise,
        gate is not None,
        triton.next_power_of_2(X),
        triton.next_power_of_2(E),
        triton.next_power_of_2(args.used),
    )
    return chosen, weights, shared


def group(chosen: Tensor, experts: int, size: int) -> Blocks:
    """Group the pairs of chosen int32 [T, used] in blocks of at most `size`."""
    pairs = chosen.numel()
    by_pair = pairs <= experts + pairs // size
    blocks = pairs if by_pair else experts + pairs // size
    order = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    entries = torch.empty(3, blocks, dtype=torch.int32, device=chosen.device)
    step = min(triton.next_power_of_2(pairs), 1024)
    group_kernel[(experts,)](chosen, order, entries, pairs, blocks, by_pair, size, step)
    return Blocks(order, entries, size)
