"""Decode any stored tensor to f32: the specification every faster decoder is held to.

Bit-equal to the official `gguf.quants.dequantize` on every format it knows; plain PyTorch, any device.
"""

from collections.abc import Callable

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.ref import quant_grid, quant_plain, quant_super, quant_tiny
from pydflash.kernels.ref.quant_bits import Tensor, half
from pydflash.quant.formats import QuantFormat
from pydflash.quant.tensor import QuantTensor

_SLICE = 1 << 21  # elements decoded at a time, so that intermediates stay at tens of megabytes


def dequantize(tensor: QuantTensor) -> Tensor:
    """The numbers a tensor stores: f32, its logical shape, on its device. Always a fresh tensor.

    Raises UnsupportedError, naming the tensor, for a format without a decoder.
    """
    decode = _DECODERS.get(tensor.format.name)
    if decode is None:
        raise UnsupportedError(
            f"{tensor.name} is {tensor.format.name}, which cannot be decoded; "
            "requantise the file to a supported type"
        )
    out = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.data.device)
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    flat = out.view(-1, tensor.cols)
    step = max(1, _SLICE // max(1, tensor.cols))
    for start in range(0, rows.shape[0], step):
        blocks = rows[start : start + step].reshape(-1, tensor.format.block_bytes)
        flat[start : start + step] = decode(blocks).view(-1, tensor.cols)
    return out


def can_decode(format: QuantFormat) -> bool:
    """Whether `dequantize` knows the format."""
    return format.name in _DECODERS


def _plain(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    def decode(b: Tensor) -> Tensor:
        return b.clone(memory_format=torch.contiguous_format).view(dtype).float()

    return decode


_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": _plain(torch.float32),
    "F16": half,
    "BF16": _plain(torch.bfloat16),
    "F64": _plain(torch.float64),
    "I8": _plain(torch.int8),
    "I16": _plain(torch.int16),
    "I32": _plain(torch.int32),
    "I64": _plain(torch.int64),
    "Q4_0": quant_plain.q4_0,
    "Q4_1": quant_plain.q4_1,
    "Q5_0": quant_plain.q5_0,
    "Q5_1": quant_plain.q5_1,
    "Q8_0": quant_plain.q8_0,
    "Q1_0": quant_plain.q1_0,
    "IQ4_NL": quant_plain.iq4_nl,
    "Q2_K": quant_super.q2_k,
    "Q3_K": quant_super.q3_k,
    "Q4_K": quant_super.q4_k,
    "Q5_K": quant_super.q5_k,
    "Q6_K": quant_super.q6_k,
    "IQ4_XS": quant_super.iq4_xs,
    "IQ1_S": quant_grid.iq1_s,
    "IQ1_M": quant_grid.iq1_m,
    "IQ2_XXS": quant_grid.iq2_xxs,
    "IQ2_XS": quant_grid.iq2_xs,
    "IQ2_S": quant_grid.iq2_s,
    "IQ3_XXS": quant_grid.iq3_xxs,
    "IQ3_S": quant_grid.iq3_s,
    "TQ1_0": quant_tiny.tq1_0,
    "TQ2_0": quant_tiny.tq2_0,
    "MXFP4": quant_tiny.mxfp4,
    "NVFP4": quant_tiny.nvfp4,
}
