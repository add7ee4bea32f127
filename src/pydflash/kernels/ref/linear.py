"""Products with quantised weights: decode the blocks, then a plain matrix product.

Exact rows are multiplied one at a time, so that a row's bits do not depend on how many share the step;
a prefill chunk is one product.
"""

from collections.abc import Callable, Sequence

import torch

from pydflash.kernels.ops import RowKind, Span, Weight
from pydflash.kernels.ref.quant import dequantize
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor

KEEP_BYTES = 1 << 30
"""Decoded weights kept between calls, in bytes: makes the reference path usable on small models."""


class Decoded:
    """Decoded parts of weights, kept up to a budget; beyond it they are decoded for every call."""

    def __init__(self, budget: int = KEEP_BYTES) -> None:
        self.free = budget

    def of(self, weight: Weight) -> Tensor:
        """The whole weight as f32 [N, K]."""
        kept = weight.scratch.get("f32")
        if isinstance(kept, Tensor):
            return kept
        parts = weight.packed
        assert isinstance(parts, tuple)
        full = torch.cat([dequantize(p).reshape(-1, weight.cols) for p in parts])
        if full.numel() * 4 <= self.free:
            self.free -= full.numel() * 4
            weight.scratch["f32"] = full
        return full


def prepare(parts: Sequence[QuantTensor], bias: Tensor | None = None) -> Weight:
    """Keep the tensors as they are."""
    return Weight(
        rows=sum(p.num_rows for p in parts),
        cols=parts[0].cols,
        parts=tuple(p.num_rows for p in parts),
        formats=tuple(p.format.name for p in parts),
        nbytes=sum(p.nbytes for p in parts),
        packed=tuple(parts),
        bias=bias,
    )


def embed(weight: Weight, tokens: Tensor) -> Tensor:
    """Rows of an (unmerged) weight, decoded. tokens int [T] -> f32 [T, K]."""
    parts = weight.packed
    assert isinstance(parts, tuple)
    part: QuantTensor = parts[0]
    data = part.data[tokens.long()].contiguous()
    shape = (data.shape[0], weight.cols)
    return dequantize(QuantTensor(name=part.name, data=data, format=part.format, shape=shape))


def product(rows: Tensor, values: Tensor, weight: Weight) -> Tensor:
    """rows [n, K] times the decoded `values` [N, K] of `weight`, its scale and bias included: one product."""
    if weight.scale is None:
        return torch.nn.functional.linear(rows, values, weight.bias)
    out = torch.nn.functional.linear(rows, values) * weight.scale
    return out if weight.bias is None else out + weight.bias


def by_span(fn: Callable[[Tensor], Tensor], x: Tensor, spans: Sequence[Span]) -> Tensor:
    """Apply fn to each exact row alone and to each prefill chunk whole; concatenate along rows."""
    out: list[Tensor] = []
    for span in spans:
        if span.kind is RowKind.EXACT:
            out.extend(fn(x[t : t + 1]) for t in range(span.start, span.stop))
        else:
            out.append(fn(x[span.start : span.stop]))
    return torch.cat(out)
