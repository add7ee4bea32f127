"""Mixture of experts: route on the device, run the chosen experts, sum in order of choice.

Nothing here waits for the device, and every size follows from shapes: a step of exact rows can be captured.
"""

import torch
import triton
import triton.language as tl

from pydflash.kernels.ops import MoeArgs, RowKind, Span
from pydflash.kernels.triton import experts, flow, layers, pointwise
from pydflash.kernels.triton.branch import Branch
from pydflash.kernels.triton.experts import Stack
from pydflash.kernels.triton.route import group, route
from pydflash.kernels.triton.weights import packed_of

Tensor = torch.Tensor

BLOCKS = {RowKind.EXACT: 16, RowKind.PREFILL: 32}
"""Pairs that share a read of an expert's weights: always the same for exact rows, whatever goes with them."""
MOST = 512  # tokens whose experts run at once


@triton.jit(do_not_specialize=["pairs"])
def combine_kernel(
    x_ptr, parts_ptr, weights_ptr, shared_ptr, gate_ptr, pairs, E, used,
    SPLITS: tl.constexpr, HAS_SHARED: tl.constexpr, HAS_GATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x f32 [T, E] += the experts' sums by weight, best expert first, then the shared one's."""
    i_t = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = o < E
    total = tl.zeros((BLOCK,), tl.float32)
    for rank in range(used):
        pair = i_t * used + rank
        part = tl.zeros((BLOCK,), tl.float32)
        for split in tl.static_range(SPLITS):
            part += tl.load(
                parts_ptr + (split * pairs.to(tl.int64) + pair) * E + o, mask=mask, other=0.0
            )
        total += part * tl.load(weights_ptr + pair)
    if HAS_SHARED:
        shared = tl.load(shared_ptr + i_t * E + o, mask=mask, other=0.0)
        if HAS_GATE:
            shared = shared * tl.load(gate_ptr + i_t)
        total += shared
    at = x_ptr + i_t * E + o
    tl.store(at, tl.load(at, mask=mask, other=0.0) + total, mask=mask)


def moe(x: Tensor, norm: Tensor, eps: float, args: MoeArgs, spans: tuple[Span, ...]) -> Tensor:
    """See `OpTable.moe`; overwrites and returns x f32 [T, E]."""
    up, down = _stacks(args)
    shared = args.shared
    feeders = [args.router] if shared is None else [args.router, shared.gate_up]
    widths = {up.first.width, *(packed_of(w).width for w in feeders)}
    normed = {width: flow.norm(x, norm, eps, width) for width in sorted(widths)}  # mostly one
    branch = Branch(x.device)
    beside: Tensor | None = None
    if shared is not None:
        fed = normed[packed_of(shared.gate_up).width]
        with branch.work():
            inner = layers.gated(fed, shared.gate_up, args.act, packed_of(shared.down).width, spans)
            beside = layers.multiplied(inner, shared.down, spans)
    logits = layers.multiplied(normed[packed_of(args.router).width], args.router, spans)
    fed = normed[up.first.width]
    chosen, weights, gate = route(logits, fed, args)
    E = x.shape[1]
    for span in spans:
        size = BLOCKS[span.kind]
        for first in range(span.start, span.stop, MOST):
            own = slice(first, min(first + MOST, span.stop))
            blocks = group(chosen[own], len(args.experts), size)
            parts = experts.product(fed[own], up, blocks, args.used)
            inner = pointwise.gated(parts, up.counts, None, args.act, down.first.width)
            parts = experts.product(inner, down, blocks, 1)
            branch.join()
            combine_kernel[(own.stop - first, triton.cdiv(E, 512))](
                x[own],
                parts,
                weights[own],
                x if beside is None else beside[own],
                gate[own],
                parts.shape[1],
                E,
                args.used,
                SPLITS=down.splits,
                HAS_SHARED=shared is not None,
                HAS_GATE=args.shared_gate is not None,
                BLOCK=512,
            )
    return x


def _stacks(args: MoeArgs) -> tuple[Stack, Stack]:
    """Where the experts of a layer lie: told once."""
    scratch = args.experts[0].gate_up.scratch
    found = scratch.get("stacks")
    if found is None:
        found = scratch["stacks"] = (
            experts.stack([e.gate_up for e in args.experts], args.used),
            experts.stack([e.down for e in args.experts], args.used),
        )
    return found
