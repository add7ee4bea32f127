"""Bounds-checked reader of a safetensors header: 8 bytes of length, JSON, then the tensors' bytes.

Source: the safetensors format description. Shapes of scalars become [1].
"""

import json
from math import prod
from typing import Any, TypeGuard

from pydflash.checkpoint.gguf_header import TensorEntry
from pydflash.checkpoint.gguf_values import Buffer
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.quant.formats import FORMATS

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMS = 8
_DTYPES = {name: FORMATS[name] for name in ("F16", "F32", "F64", "BF16", "I8", "I16", "I32", "I64")}
_DTYPES["BOOL"] = FORMATS["I8"]  # a byte each


def read_safetensors_header(
    buffer: Buffer, name: str
) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The tensors of the file `name` (offsets from the file's start) and its `__metadata__`."""
    length = int.from_bytes(buffer[:8], "little")
    start = 8 + length
    if len(buffer) < 8 or start > len(buffer):
        raise _bad(name, f"its header of {length} bytes runs past the end of the file")
    if length > MAX_HEADER_BYTES:
        raise _bad(name, f"its header claims {length} bytes")
    try:
        header = json.loads(bytes(buffer[8:start]), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _bad(name, f"its header is not valid JSON ({str(error)[:80]})") from None
    if not isinstance(header, dict):
        raise _bad(name, "its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(name, "its __metadata__ is not a map of strings")
    tensors = {key: _entry(name, key, value, start) for key, value in header.items()}
    _check_ranges(name, tensors, start, len(buffer))
    return tensors, metadata


def _entry(name: str, key: str, value: Any, start: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise _bad(name, f"tensor {key} is not described by an object")
    dtype, shape, place = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or not _is_sizes(shape) or not _is_sizes(place):
        raise _bad(name, f"tensor {key} lacks a valid dtype, shape or data_offsets")
    if len(place) != 2 or len(shape) > MAX_DIMS or 0 in shape:
        raise _bad(name, f"tensor {key} has shape {shape[:9]} and offsets {place[:3]}")
    layout = _DTYPES.get(dtype)
    if layout is None:
        raise UnsupportedError(
            f"{name}: {key} has type {dtype}, which is not read from safetensors; "
            "fetch the model in BF16, F16 or as GGUF"
        )
    nbytes = prod(shape) * layout.block_bytes
    if place[1] - place[0] != nbytes:
        raise _bad(name, f"tensor {key} ({dtype} {shape}) has {place[1] - place[0]} bytes of data")
    return TensorEntry(
        name=key,
        shape=tuple(shape) or (1,),
        format=layout,
        offset=start + place[0],
        nbytes=nbytes,
    )


def _check_ranges(name: str, tensors: dict[str, TensorEntry], start: int, size: int) -> None:
    stop, before = start, "the header"
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset < stop:
            raise _bad(name, f"tensor {tensor.name} overlaps {before}")
        stop, before = tensor.offset + tensor.nbytes, tensor.name
        if stop > size:
            raise _bad(name, f"tensor {tensor.name} runs past the end of the file ({size} bytes)")


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _bad(name: str, what: str) -> CheckpointError:
    return CheckpointError(f"{name} is truncated or damaged: {what}; download it again")
