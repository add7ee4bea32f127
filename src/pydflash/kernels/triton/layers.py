"""The products and what is fused around them, as the OpTable names them."""

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
from pydflash.kernels.triton import flow, pointwise, prefill, products
from pydflash.kernels.triton.attention import attention
from pydflash.kernels.triton.delta import delta
from pydflash.kernels.triton.sums import Sums
from pydflash.kernels.triton.weights import packed_of

Tensor = torch.Tensor
Spans = tuple[Span, ...]


def parts_of(x: Tensor, w: Weight, span: Span) -> Tensor:
    """Partial sums f32 [slots, n, N] of one span; x f16 [n, K padded]."""
    few = span.kind is RowKind.EXACT or len(x) <= products.MOST_ROWS
    form = products.product if few else prefill.product
    return form(x, packed_of(w), w.rows)


def linear(x: Tensor, w: Weight, spans: Spans) -> Tensor:
    return multiplied(pointwise.half(x, packed_of(w).width), w, spans)


def linear_add(x: Tensor, w: Weight, residual: Tensor, spans: Spans) -> Tensor:
    fed = pointwise.half(x, packed_of(w).width)
    return _added(fed, w, residual, spans)


def norm_linear(x: Tensor, norm: Tensor, eps: float, w: Weight, spans: Spans) -> Tensor:
    return multiplied(flow.norm(x, norm, eps, packed_of(w).width), w, spans)


def norm_gated(x: Tensor, norm: Tensor, eps: float, w: Weight, act: str, spans: Spans) -> Tensor:
    return gated(flow.norm(x, norm, eps, packed_of(w).width), w, act, None, spans)


def attention_layer(x: Tensor, layer: AttnLayer, kv: PagedKV, batch: StepBatch) -> Tensor:
    qkv = _opened(x, layer.norm, layer.eps, layer.qkv, batch.spans)
    attended = attention(qkv, kv, layer.args, batch, out_dtype=_fits(layer.output))
    return _added(_half(attended, layer.output), layer.output, x, batch.spans)


def delta_layer(x: Tensor, layer: DeltaLayer, state: Recurrent, batch: StepBatch) -> Tensor:
    mixed = _opened(x, layer.norm, layer.eps, layer.mixed, batch.spans)
    told = delta(mixed, state, layer.args, batch, out_dtype=_fits(layer.output))
    return _added(_half(told, layer.output), layer.output, x, batch.spans)


def dense_layer(x: Tensor, layer: DenseLayer, spans: Spans) -> Tensor:
    fed = flow.norm(x, layer.norm, layer.eps, packed_of(layer.gate_up).width)
    inner = gated(fed, layer.gate_up, layer.act, packed_of(layer.down).width, spans)
    return _added(inner, layer.down, x, spans)


def _opened(x: Tensor, norm: Tensor, eps: float, w: Weight, spans: Spans) -> Tensor | Sums:
    """A layer's first product, of exact rows as it comes: who reads it adds the parts up."""
    fed = flow.norm(x, norm, eps, packed_of(w).width)
    if w.bias is None and len(spans) == 1 and spans[0].kind is RowKind.EXACT:
        return Sums(parts_of(fed, w, spans[0]), packed_of(w).slot_counts)
    return multiplied(fed, w, spans)


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
    """x f16 [T, K padded]; overwrites and returns residual f32 [T, N]."""
    if len(spans) == 1 and spans[0].kind is RowKind.EXACT:
        flow.add(parts_of(x, w, spans[0]), w, residual)
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
