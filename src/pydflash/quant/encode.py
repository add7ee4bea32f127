"""Pack f32 rows into a GGUF format. The plain formats match the official package bit for bit; the K formats,
which it cannot make, are packed by our own search for the least squared error.
"""

from collections.abc import Callable

import torch

from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.quant import encode_plain, encode_super
from pydflash.quant.formats import QuantFormat

Tensor = torch.Tensor

# Elements worked on at a time: temporaries stay in a core's cache, and torch does not split the work over
# threads, which costs more than it gains at this size. Callers run slices of a tensor in parallel instead.
_CHUNK = 1 << 15
_BATCH = 16  # super-blocks; their sub-blocks are whole vectors on every machine


def encode(values: Tensor, format: QuantFormat, importance: Tensor | None = None) -> Tensor:
    """f32 [rows, cols] -> uint8 [rows, row_bytes] on the same device; cols must be whole blocks.

    `importance` f32 [cols] or [rows, cols] (>= 0) weights the squared error in the K formats; the plain ones
    have nothing to search and ignore it. Raises UnsupportedError for a format without an encoder,
    CheckpointError for NaN or infinity where the format has none.
    """
    if not can_encode(format):
        raise UnsupportedError(
            f"this version cannot write {format.name}; choose one of {', '.join(WRITABLE)}"
        )
    width = format.row_bytes(values.shape[-1])
    if not format.is_dense and not bool(values.isfinite().all()):
        raise CheckpointError(
            f"NaN or infinity cannot be stored as {format.name}; keep this tensor in F32, F16 or BF16"
        )
    rows = values.shape[0]
    packed = torch.empty((rows, width), dtype=torch.uint8, device=values.device)
    blocks = values.reshape(-1, format.block)
    flat = packed.view(-1, format.block_bytes)
    weights = None if importance is None else importance.expand_as(values).reshape(blocks.shape)
    step = _CHUNK // format.block
    for start in range(0, blocks.shape[0], step):
        part = slice(start, start + step)
        if format.name in _PLAIN:
            flat[part] = _PLAIN[format.name](blocks[part])
        else:
            weight = None if weights is None else weights[part]
            flat[part] = _search(_SUPER[format.name], blocks[part], weight)
    return packed


def can_encode(format: QuantFormat) -> bool:
    """Whether `encode` knows the format."""
    return format.name in WRITABLE


def _search(
    pack: Callable[[Tensor, Tensor | None], Tensor], blocks: Tensor, weight: Tensor | None
) -> Tensor:
    """Pack super-blocks in whole batches: torch rounds differently in the remainder of a vector loop, and a
    row's bytes shall not depend on where a slice ends."""
    count = blocks.shape[0]
    missing = -count % _BATCH
    if missing:
        pad = (0, 0, 0, missing)
        blocks = torch.nn.functional.pad(blocks, pad)
        weight = None if weight is None else torch.nn.functional.pad(weight, pad, value=1.0)
    return pack(blocks, weight)[:count]


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": encode_plain.f32,
    "F16": encode_plain.f16,
    "BF16": encode_plain.bf16,
    "Q4_0": encode_plain.q4_0,
    "Q4_1": encode_plain.q4_1,
    "Q5_0": encode_plain.q5_0,
    "Q5_1": encode_plain.q5_1,
    "Q8_0": encode_plain.q8_0,
}
_SUPER: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "Q2_K": encode_super.q2_k,
    "Q3_K": encode_super.q3_k,
    "Q4_K": encode_super.q4_k,
    "Q5_K": encode_super.q5_k,
    "Q6_K": encode_super.q6_k,
}
WRITABLE = (*_PLAIN, *_SUPER)
