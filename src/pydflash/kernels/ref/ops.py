"""The reference OpTable: fused ops as compositions of the plain ones."""

import torch

from pydflash.kernels.ops import (
    AttnLayer,
    DeltaLayer,
    DenseLayer,
    MoeArgs,
    OpTable,
    PagedKV,
    Recurrent,
    Span,
    StepBatch,
    Weight,
)
from pydflash.kernels.ref import linear as lin
from pydflash.kernels.ref import moe as experts
from pydflash.kernels.ref.argmax import argmax
from pydflash.kernels.ref.attention import attention, copy_slots, store_kv
from pydflash.kernels.ref.calibrate import calibrate
from pydflash.kernels.ref.delta import delta, delta_commit
from pydflash.kernels.ref.pointwise import activate, rms_norm
from pydflash.kernels.ref.shortlist import shortlist
from pydflash.kernels.ref.top import top
from pydflash.kernels.ref.tree import grow_trees, plant
from pydflash.quant.formats import FORMATS

Tensor = torch.Tensor


def build_ops(device: torch.device) -> OpTable:
    """Pure PyTorch on `device`: right on every format, slow."""
    decoded = lin.Decoded()

    def product(rows: Tensor, w: Weight) -> Tensor:
        return lin.product(rows, decoded.of(w), w)

    def linear(x: Tensor, w: Weight, spans: tuple[Span, ...]) -> Tensor:
        return lin.by_span(lambda rows: product(rows, w), x, spans)

    def linear_add(x: Tensor, w: Weight, residual: Tensor, spans: tuple[Span, ...]) -> Tensor:
        return residual + linear(x, w, spans)

    def norm_linear(
        x: Tensor, norm: Tensor, eps: float, w: Weight, spans: tuple[Span, ...]
    ) -> Tensor:
        normed = lin.by_span(lambda rows: rms_norm(rows, norm, eps), x, spans)
        return linear(normed, w, spans)

    def norm_gated(
        x: Tensor, norm: Tensor, eps: float, w: Weight, act: str, spans: tuple[Span, ...]
    ) -> Tensor:
        gate, up = norm_linear(x, norm, eps, w, spans).chunk(2, -1)
        return activate(gate, up, act)

    def attention_layer(x: Tensor, layer: AttnLayer, kv: PagedKV, batch: StepBatch) -> Tensor:
        qkv = norm_linear(x, layer.norm, layer.eps, layer.qkv, batch.spans)
        return linear_add(attention(qkv, kv, layer.args, batch), layer.output, x, batch.spans)

    def dense_layer(x: Tensor, layer: DenseLayer, spans: tuple[Span, ...]) -> Tensor:
        gated = norm_gated(x, layer.norm, layer.eps, layer.gate_up, layer.act, spans)
        return linear_add(gated, layer.down, x, spans)

    def delta_layer(x: Tensor, layer: DeltaLayer, state: Recurrent, batch: StepBatch) -> Tensor:
        mixed = norm_linear(x, layer.norm, layer.eps, layer.mixed, batch.spans)
        return linear_add(delta(mixed, state, layer.args, batch), layer.output, x, batch.spans)

    def moe(x: Tensor, norm: Tensor, eps: float, args: MoeArgs, spans: tuple[Span, ...]) -> Tensor:
        return experts.moe(x, norm, eps, args, spans, product)

    return OpTable(
        name="ref",
        device=device,
        borrows=True,
        prepare=lin.prepare,
        embed=lin.embed,
        linear=linear,
        linear_add=linear_add,
        norm_linear=norm_linear,
        norm_gated=norm_gated,
        attention=attention,
        attention_layer=attention_layer,
        dense_layer=dense_layer,
        copy_slots=copy_slots,
        formats=frozenset(FORMATS) - {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"},
        delta=delta,
        delta_layer=delta_layer,
        delta_commit=delta_commit,
        moe=moe,
        scales=True,
        keeps=lin.KEEP_BYTES,
        store_kv=store_kv,
        top=top,
        argmax=argmax,
        shortlist=shortlist,
        grow_trees=grow_trees,
        calibrate=calibrate,
        plant=plant,
    )
