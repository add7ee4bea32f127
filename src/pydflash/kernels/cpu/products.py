"""Products on the CPU: thin calls into the C library (see src/products.inc for the arithmetic).

Exact rows and prefill rows take the same arithmetic here, so `spans` is not looked at.
"""

import ctypes
from collections.abc import Sequence

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.cpu.weights import pack, packed_of
from pydflash.kernels.ops import Span, Weight
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor
Spans = tuple[Span, ...]

ACTS = {"silu": 0, "gelu": 1}
"""In the order of `enum Act` in src/layout.h."""

_PLAIN = -1


def act_number(act: str) -> int:
    """An activation's number in the C library."""
    if act not in ACTS:
        raise UnsupportedError(
            f"activation {act!r}; the CPU kernels know {', '.join(ACTS)}: run with --ops ref"
        )
    return ACTS[act]


class Products:
    """The product ops: x f32 [T, K] contiguous; see `OpTable` for each one's shapes."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._library = library
        self._product = library.pf_product
        self._threads = threads

    def prepare(self, parts: Sequence[QuantTensor], bias: Tensor | None = None) -> Weight:
        return pack(self._library, parts, bias, self._threads)

    def embed(self, weight: Weight, tokens: Tensor) -> Tensor:
        tokens = tokens.to(torch.int32).contiguous()
        ids = tokens.numpy()
        if ids.size and not 0 <= ids.min() <= ids.max() < weight.rows:
            raise ValueError(f"embed: token ids must lie in 0..{weight.rows - 1}")
        out = torch.empty((tokens.shape[0], weight.cols))
        self._library.pf_embed(
            packed_of(weight).address,
            tokens.data_ptr(),
            tokens.shape[0],
            out.data_ptr(),
            self._threads,
        )
        return out

    def linear(self, x: Tensor, weight: Weight, spans: Spans) -> Tensor:
        out = torch.empty((x.shape[0], weight.rows))
        self._run(x, weight, out, None, None, 0.0, _PLAIN)
        return out

    def linear_add(self, x: Tensor, weight: Weight, residual: Tensor, spans: Spans) -> Tensor:
        if not residual.is_contiguous():
            residual = residual.contiguous()
        self._run(x, weight, residual, residual, None, 0.0, _PLAIN)
        return residual

    def norm_linear(
        self, x: Tensor, norm: Tensor, eps: float, weight: Weight, spans: Spans
    ) -> Tensor:
        out = torch.empty((x.shape[0], weight.rows))
        self._run(x, weight, out, None, norm, eps, _PLAIN)
        return out

    def norm_gated(
        self, x: Tensor, norm: Tensor, eps: float, weight: Weight, act: str, spans: Spans
    ) -> Tensor:
        kind = act_number(act)
        packed = packed_of(weight)
        half = weight.rows // 2
        out = torch.empty((x.shape[0], half))
        if packed.halves_apart:
            self._run(x, weight, out, None, norm, eps, kind)
        else:
            both = self.norm_linear(x, norm, eps, weight, spans)
            self._library.pf_gate(
                both.data_ptr(), x.shape[0], half, out.data_ptr(), kind, self._threads
            )
        return out

    def _run(
        self,
        x: Tensor,
        weight: Weight,
        out: Tensor,
        residual: Tensor | None,
        norm: Tensor | None,
        eps: float,
        act: int,
    ) -> None:
        packed = packed_of(weight)
        if x.shape[-1] != weight.cols or not x.is_contiguous():
            if x.shape[-1] != weight.cols:
                raise ValueError(f"product of {list(x.shape)} with [{weight.rows}, {weight.cols}]")
            x = x.contiguous()
        self._product(
            packed.address,
            x.data_ptr(),
            x.shape[0],
            out.data_ptr(),
            None if residual is None else residual.data_ptr(),
            None if norm is None else norm.data_ptr(),
            eps,
            act,
            self._threads,
        )
