"""Mixture of experts: route, run only the chosen experts, sum in order of choice. The specification."""

from collections.abc import Callable

import torch

from pydflash.kernels.ops import MIN_WEIGHT_SUM, Expert, MoeArgs, Span, Weight
from pydflash.kernels.ref.linear import by_span
from pydflash.kernels.ref.pointwise import activate, rms_norm

Tensor = torch.Tensor
Product = Callable[[Tensor, Weight], Tensor]


def moe(
    x: Tensor, norm: Tensor, eps: float, args: MoeArgs, spans: tuple[Span, ...], product: Product
) -> Tensor:
    """x f32 [T, E] -> x + experts(rms_norm(x) * norm). `product(rows, w)` is rows W^T as one product."""

    def mixed(rows: Tensor) -> Tensor:
        return _experts(rms_norm(rows, norm, eps), args, product)

    return x + by_span(mixed, x, spans)


def route(logits: Tensor, args: MoeArgs) -> tuple[Tensor, Tensor]:
    """Chosen experts int64 [n, used], best first, and their weights f32 [n, used]. logits f32 [n, X]."""
    chances = logits.sigmoid() if args.sigmoid else logits.softmax(-1)
    best, chosen = chances.sort(stable=True, dim=-1, descending=True)  # ties: the lower id first
    weights, chosen = best[:, : args.used], chosen[:, : args.used]
    if args.normalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=MIN_WEIGHT_SUM)
    return chosen, weights * args.scale


def _experts(rows: Tensor, args: MoeArgs, product: Product) -> Tensor:
    chosen, weights = route(product(rows, args.router), args)
    parts = rows.new_empty(*chosen.shape, rows.shape[1])  # [n, used, E]
    for index in sorted(set(chosen.flatten().tolist())):
        at, rank = (chosen == index).nonzero(as_tuple=True)
        parts[at, rank] = _feed_forward(rows[at], args.experts[index], args.act, product)
    out = parts[:, 0] * weights[:, :1]
    for rank in range(1, args.used):
        out = out + parts[:, rank] * weights[:, rank : rank + 1]
    if args.shared is not None:
        shared = _feed_forward(rows, args.shared, args.act, product)
        if args.shared_gate is not None:
            shared = shared * (rows * args.shared_gate).sum(-1, keepdim=True).sigmoid()
        out = out + shared
    return out


def _feed_forward(rows: Tensor, expert: Expert, act: str, product: Product) -> Tensor:
    gate, up = product(rows, expert.gate_up).chunk(2, -1)
    return product(activate(gate, up, act), expert.down)
