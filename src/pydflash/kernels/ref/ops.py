"""The reference OpTable: fused ops as compositions of the plain ones."""

import torch

from pydflash.kernels.ops import OpTable, Span, Weight
from pydflash.kernels.ref import linear as lin
from pydflash.kernels.ref.attention import attention, copy_slots
from pydflash.kernels.ref.pointwise import activate, rms_norm
from pydflash.quant.formats import FORMATS

Tensor = torch.Tensor


def build_ops(device: torch.device) -> OpTable:
    """Pure PyTorch on `device`: right on every format, slow."""
    decoded = lin.Decoded()

    def linear(x: Tensor, w: Weight, spans: tuple[Span, ...]) -> Tensor:
        return lin.product(x, decoded.of(w), w.bias, spans)

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
        copy_slots=copy_slots,
        formats=frozenset(FORMATS) - {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"},
    )
