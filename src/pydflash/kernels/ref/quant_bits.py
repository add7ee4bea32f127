"""Bit surgery shared by the block decoders: fields of packed bytes, little-endian words, half floats.

Blocks are uint8 [n, block_bytes] on any device, of any alignment: every view here is of a fresh copy.
"""

from collections.abc import Sequence

import torch

Tensor = torch.Tensor


def half(data: Tensor) -> Tensor:
    """Little-endian f16 pairs as f32. uint8 [n, 2k] -> f32 [n, k]."""
    return data.clone(memory_format=torch.contiguous_format).view(torch.float16).float()


def words16(data: Tensor) -> Tensor:
    """Little-endian unsigned 16-bit words. uint8 [n, 2k] -> int32 [n, k]."""
    fresh = data.clone(memory_format=torch.contiguous_format).view(torch.int16)
    return fresh.int() & 0xFFFF


def words32(data: Tensor) -> Tensor:
    """Little-endian unsigned 32-bit words. uint8 [n, 4k] -> int64 [n, k]."""
    fresh = data.clone(memory_format=torch.contiguous_format).view(torch.int32)
    return fresh.long() & 0xFFFFFFFF


def fields(data: Tensor, shifts: Sequence[int], mask: int, group: int) -> Tensor:
    """Cut each element into bit fields, whole groups of elements at a time.

    [n, g * group] -> [n, g * len(shifts) * group]: for every group, the first field of all its elements,
    then the second, and so on. `group` 1 keeps an element's fields together.
    """
    by = torch.tensor(shifts, dtype=data.dtype, device=data.device).view(1, 1, -1, 1)
    cut = (data.reshape(data.shape[0], -1, 1, group) >> by) & mask  # [n, g, shifts, group]
    return cut.reshape(data.shape[0], -1)


def bits(data: Tensor) -> Tensor:
    """Bits of each byte, lowest first. uint8 [n, k] -> uint8 [n, 8 k]."""
    return fields(data, range(8), 1, 1)
