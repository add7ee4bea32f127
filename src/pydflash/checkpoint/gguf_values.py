"""Metadata values of a GGUF file: their types, where they lie, and how their bytes become Python values.

Decoding trusts the ranges that `gguf_header` has checked.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, Protocol

from pydflash.errors import CheckpointError

_U32 = Struct("<I")
_U64 = Struct("<Q")


class Buffer(Protocol):
    """What is read here: bytes, or an mmap."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: slice, /) -> bytes: ...


class ValueType(IntEnum):
    """The type numbers of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[int, Struct] = {
    ValueType.UINT8: Struct("<B"),
    ValueType.INT8: Struct("<b"),
    ValueType.UINT16: Struct("<H"),
    ValueType.INT16: Struct("<h"),
    ValueType.UINT32: Struct("<I"),
    ValueType.INT32: Struct("<i"),
    ValueType.FLOAT32: Struct("<f"),
    ValueType.BOOL: Struct("<B"),
    ValueType.UINT64: Struct("<Q"),
    ValueType.INT64: Struct("<q"),
    ValueType.FLOAT64: Struct("<d"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where one metadata value lies: bytes start..stop of the file. `item` and `count` are for arrays."""

    key: str
    type: ValueType
    item: ValueType | None
    count: int
    start: int
    stop: int


def decode_value(buffer: Buffer, entry: Entry, name: str) -> Any:
    """The value of an entry: int, float, bool, str, or a list of them (of lists, when nested).

    Strings that are not UTF-8 have the bad bytes replaced.
    """
    data = bytes(buffer[entry.start : entry.stop])
    value, _ = _decode(data, 0, entry.type, f"{name}: {entry.key}")
    return value


def _decode(data: bytes, pos: int, kind: ValueType, what: str) -> tuple[Any, int]:
    if kind is ValueType.ARRAY:
        item = ValueType(_U32.unpack_from(data, pos)[0])
        (count,) = _U64.unpack_from(data, pos + 4)
        return _decode_items(data, pos + 12, item, count, what)
    values, pos = _decode_items(data, pos, kind, 1, what)
    return values[0], pos


def _decode_items(
    data: bytes, pos: int, kind: ValueType, count: int, what: str
) -> tuple[list[Any], int]:
    if kind is ValueType.STRING:
        return _decode_strings(data, pos, count)
    if kind is ValueType.ARRAY:
        lists = []
        for _ in range(count):
            inner, pos = _decode(data, pos, kind, what)
            lists.append(inner)
        return lists, pos
    layout = Struct(f"<{count}{SCALARS[kind].format[1:]}")
    values = list(layout.unpack_from(data, pos))
    if kind is ValueType.BOOL:
        if any(value > 1 for value in values):
            raise CheckpointError(f"{what} is a boolean other than 0 and 1; download it again")
        values = [value == 1 for value in values]
    return values, pos + layout.size


def _decode_strings(data: bytes, pos: int, count: int) -> tuple[list[str], int]:
    texts, read = [], _U64.unpack_from
    for _ in range(count):
        start = pos + 8
        pos = start + read(data, pos)[0]
        texts.append(data[start:pos].decode("utf-8", "replace"))
    return texts, pos
