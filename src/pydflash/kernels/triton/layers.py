"""The products and what is fused around them, as the OpTable names them.

A layer of exact rows leaves the last sum of its residual stream undone: the partial sums hang on the tensor
(`Owed`), and the next norm, which reads the row anyway, adds them. `settle` does it for other readers.
"""

from dataclasses import dataclass

import torch

from pydflash.kernels.ops import (
    AttnLayer,
    DeltaLayer,
    DenseLayer,
    PagedKV,
    Recurrent,
    RowKind,
    Span,
    StepBatch,
    Weight,
)
from pydflash.kernels.triton import pointwise, prefill, products
from pydflash.kernels.triton.attention import attention
from pydflash.kernels.triton.delta import delta
from pydflash.kernels.triton.weights import packed_of

Tensor = torch.Tensor
Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Owed:
    """Partial sums f32 [slots, T, E] that a residual stream still lacks, and the weight they are of."""

    parts: Tensor
    weight: Weight


def settle(x: Tensor) -> Tensor:
    """x f32 [T, E] with what it is owed."""
    owed: Owed | None = x.__dict__.pop("owed", None)
    return x if owed is None else _finish(owed.parts, owed.weight, residual=x, out=x)


def normed(x: Tensor, norm: Tensor, eps: float, width: int) -> Tensor:
    """rms norm of x f32 [T, E], settled by the way, -> f16 [T, width]."""
    owed: Owed | None = x.__dict__.pop("owed", None)
    if owed is None:
        return pointwise.norm(x, norm, eps, width)
    counts = packed_of(owed.weight).slot_counts
    return pointwise.add_norm(x, owed.parts, counts, owed.weight.bias, norm, eps, width)


def parts_of(x: Tensor, w: Weight, span: Span) -> Tensor:
    """Partial sums f32 [splits, n, N] of one span; x f16 [n, K padded]."""
    few = span.kind is RowKind.EXACT or len(x) <= products.MOST_ROWS
    form = products.product if few else prefill.product
    return form(x, packed_of(w), w.rows)


def linear(x: Tensor, w: Weight, spans: Spans) -> Tensor:
    return multiplied(pointwise.half(settle(x), packed_of(w).width), w, spans)


def linear_add(x: Tensor, w: Weight, residual: Tensor, spans: Spans) -> Tensor:
    fed = pointwise.half(settle(x), packed_of(w).width)
    return settle(_added(fed, w, settle(residual), spans))


def norm_linear(x: Tensor, norm: Tensor, eps: float, w: Weight, spans: Spans) -> Tensor:
    return multiplied(normed(x, norm, eps, packed_of(w).width), w, spans)


def norm_gated(x: Tensor, norm: Tensor, eps: float, w: Weight, act: str, spans: Spans) -> Tensor:
    return gated(normed(x, norm, eps, packed_of(w).width), w, act, None, spans)


def attention_layer(x: Tensor, layer: AttnLayer, kv: PagedKV, batch: StepBatch) -> Tensor:
    qkv = norm_linear(x, layer.norm, layer.eps, layer.qkv, batch.spans)
    attended = attention(qkv, kv, layer.args, batch, out_dtype=_fits(layer.output))
    return _added(_half(attended, layer.output), layer.output, x, batch.spans)


def delta_layer(x: Tensor, layer: DeltaLayer, state: Recurrent, batch: StepBatch) -> Tensor:
    mixed = norm_linear(x, layer.norm, layer.eps, layer.mixed, batch.spans)
    told = delta(mixed, state, layer.args, batch, out_dtype=_fits(layer.output))
    return _added(_half(told, layer.output), layer.output, x, batch.spans)


def dense_layer(x: Tensor, layer: DenseLayer, spans: Spans) -> Tensor:
    fed = normed(x, layer.norm, layer.eps, packed_of(layer.gate_up).width)
    inner = gated(fed, layer.gate_up, layer.act, packed_of(layer.down).width, spans)
    return _added(inner, layer.down, x, spans)


def multiplied(x: Tensor, w: Weight, spans: Spans) -> Tensor:
    """x f16 [T, K padded] -> f32 [T, N]."""
    if len(spans) == 1:
        return _finish(parts_of(x, w, spans[0]), w)
    out = torch.empty(len(x), w.rows, dtype=torch.float32, device=x.device)
    for span in spans:
        own = slice(span.start, span.stop)
        parts = parts_of(x[own], w, span)
        _finish(parts, w, out=out[own])
    return out


def _added(x: Tensor, w: Weight, residual: Tensor, spans: Spans) -> Tensor:
    """x f16 [T, K padded]; returns residual f32 [T, N], overwritten or owed the product."""
    if len(spans) == 1 and spans[0].kind is RowKind.EXACT:
        residual.__dict__["owed"] = Owed(parts_of(x, w, spans[0]), w)
        return residual
    for span in spans:
        own = slice(span.start, span.stop)
        parts = parts_of(x[own], w, span)
        _finish(parts, w, residual=residual[own], out=residual[own])
    return residual


def _finish(
    parts: Tensor, w: Weight, *, residual: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    counts = packed_of(w).slot_counts
    return pointwise.finish(parts, counts, residual=residual, bias=w.bias, out=out)


def gated(x: Tensor, w: Weight, act: str, width: int | None, spans: Spans) -> Tensor:
    counts = packed_of(w).slot_counts
    pieces = [
        pointwise.gated(parts_of(x[s.start : s.stop], w, s), counts, w.bias, act, width)
        for s in spans
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _fits(w: Weight) -> torch.dtype:
    """The form in which what feeds `w` is wanted: f16, if its rows need no padding."""
    return torch.float16 if packed_of(w).width == w.cols else torch.float32


def _half(x: Tensor, w: Weight) -> Tensor:
    """What feeds `w` as f16, padded."""
    return pointwise.half(x, packed_of(w).width) if x.dtype is torch.float32 else x
