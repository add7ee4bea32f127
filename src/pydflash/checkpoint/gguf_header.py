"""Bounds-checked reader of a GGUF header, version 2 and 3, little endian.

Every count, length and offset is checked against the file before anything is allocated or looped
over, so that a forged file ends in CheckpointError and never in a hang. Arrays are measured here and
decoded only when asked for. Source: the GGUF specification (ggml, docs/gguf.md).
"""

from dataclasses import dataclass
from math import prod
from struct import Struct
from struct import error as struct_error
from typing import Any

from pydflash.checkpoint.gguf_values import SCALARS, Buffer, Entry, ValueType, decode_value
from pydflash.checkpoint.sniff import sniff
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.quant.formats import QuantFormat, format_by_id

# Far above any published model; they bound the time a forged header can take.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_STRINGS = 1 << 22
MAX_NAME_BYTES = 1 << 16
MAX_DIMS = 4
MAX_NESTING = 4

_U32 = Struct("<I")
_U64 = Struct("<Q")
_HEAD = Struct("<IQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor: shape in torch order [..., rows, cols], offset in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """All that stands before the tensor data. Ranges were proven to lie inside the file."""

    version: int
    alignment: int
    entries: dict[str, Entry]
    tensors: dict[str, TensorEntry]
    data_start: int


def read_header(buffer: Buffer, name: str) -> GgufHeader:
    """Read and check the header of the file `name`, whose whole contents are `buffer`."""
    scan = _Scanner(buffer, name)
    try:
        return scan.header()
    except struct_error:
        raise scan.truncated("its header") from None


class _Scanner:
    """A position in a buffer. `struct` itself refuses to read past the end; lengths are checked here."""

    def __init__(self, buffer: Buffer, name: str) -> None:
        self.buffer = buffer
        self.name = name
        self.size = len(buffer)
        self.pos = 0
        self.strings_left = MAX_STRINGS

    def truncated(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.name} is truncated or damaged: {what} runs past the end of the file "
            f"({self.size} bytes); download it again"
        )

    def bad(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.name} is damaged: {what}; download it again")

    def header(self) -> GgufHeader:
        sniffed = sniff(bytes(self.buffer[:512]), self.size, self.name)
        if sniffed != "gguf":
            raise CheckpointError(f"{self.name} is a {sniffed} file, not GGUF")
        self.pos = 4
        version, num_tensors, num_keys = self.unpack(_HEAD)
        if version & 0xFFFF == 0 and version:
            raise UnsupportedError(
                f"{self.name} is a big-endian GGUF file; convert it to little endian"
            )
        if version not in (2, 3):
            raise UnsupportedError(
                f"{self.name} is GGUF version {version}; versions 2 and 3 are read: "
                "convert the model again or update pydflash"
            )
        self.limit("metadata keys", num_keys, MAX_KEYS, 13)
        self.limit("tensors", num_tensors, MAX_TENSORS, 32)
        entries = self.entries(num_keys)
        alignment = self.alignment(entries)
        infos = [self.tensor_info() for _ in range(num_tensors)]
        data_start = -(-self.pos // alignment) * alignment
        tensors = self.place(infos, data_start, alignment)
        return GgufHeader(
            version=version,
            alignment=alignment,
            entries=entries,
            tensors=tensors,
            data_start=data_start,
        )

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        values: tuple[Any, ...] = layout.unpack_from(self.buffer, self.pos)  # type: ignore[arg-type]
        self.pos += layout.size
        return values

    def limit(self, what: str, count: int, most: int, least_bytes: int) -> None:
        """Refuse a count that is absurd or that the rest of the file cannot hold."""
        if count > most:
            raise self.bad(f"it claims {count} {what} (at most {most} are read)")
        if count * least_bytes > self.size - self.pos:
            raise self.truncated(f"the list of {count} {what}")

    def text(self, what: str) -> str:
        (length,) = self.unpack(_U64)
        if length > self.size - self.pos:
            raise self.truncated(what)
        if not 0 < length <= MAX_NAME_BYTES:
            raise self.bad(f"{what} is {length} bytes long")
        raw = bytes(self.buffer[self.pos : self.pos + length])
        self.pos += length
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.bad(f"{what} is not UTF-8 ({raw[:40]!r})") from None

    def value_type(self, key: str) -> ValueType:
        (number,) = self.unpack(_U32)
        try:
            return ValueType(number)
        except ValueError:
            raise self.bad(f"{key} has unknown value type {number}") from None

    def entries(self, count: int) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for index in range(count):
            key = self.text(f"metadata key {index}")
            if key in found:
                raise self.bad(f"metadata key {key} appears twice")
            kind = self.value_type(key)
            start = self.pos
            item, length = self.skip(kind, key, 0)
            found[key] = Entry(
                key=key, type=kind, item=item, count=length, start=start, stop=self.pos
            )
        return found

    def skip(self, kind: ValueType, key: str, depth: int) -> tuple[ValueType | None, int]:
        """Step over a value; for an array also say what it holds and how many."""
        if kind is ValueType.ARRAY:
            return self.skip_array(key, depth)
        if kind is ValueType.STRING:
            self.skip_strings(1, key)
        else:
            self.skip_bytes(SCALARS[kind].size, key)
        return None, 1

    def skip_bytes(self, count: int, key: str) -> None:
        if count > self.size - self.pos:
            raise self.truncated(key)
        self.pos += count

    def skip_strings(self, count: int, key: str) -> None:
        # The hot loop: half a million turns for a large vocabulary, so plain locals and no calls
        # but one. A length past the end makes the next read, or the last check, fail.
        self.strings_left -= count
        if self.strings_left < 0:
            raise self.bad(f"{key} brings its strings to more than {MAX_STRINGS}")
        read, buffer, pos, size = _U64.unpack_from, self.buffer, self.pos, self.size
        try:
            for _ in range(count):
                pos += 8 + read(buffer, pos)[0]  # type: ignore[arg-type]
                if pos > size:
                    raise self.truncated(key)
        except struct_error:
            raise self.truncated(key) from None
        self.pos = pos

    def skip_array(self, key: str, depth: int) -> tuple[ValueType, int]:
        if depth >= MAX_NESTING:
            raise self.bad(f"{key} nests arrays more than {MAX_NESTING} deep")
        item = self.value_type(key)
        (count,) = self.unpack(_U64)
        left = self.size - self.pos
        if item is ValueType.STRING:
            if count * 8 > left:
                raise self.truncated(key)
            self.skip_strings(count, key)
        elif item is ValueType.ARRAY:
            if count * 12 > left:
                raise self.truncated(key)
            self.strings_left -= count
            if self.strings_left < 0:
                raise self.bad(f"{key} has more than {MAX_STRINGS} inner arrays")
            for _ in range(count):
                self.skip_array(key, depth + 1)
        else:
            self.skip_bytes(count * SCALARS[item].size, key)
        return item, count

    def alignment(self, entries: dict[str, Entry]) -> int:
        entry = entries.get("general.alignment")
        if entry is None:
            return 32
        if entry.type is not ValueType.UINT32:
            raise self.bad(f"general.alignment is {entry.type.name}, not UINT32")
        alignment = int(decode_value(self.buffer, entry, self.name))
        if not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.bad(f"general.alignment is {alignment}, not a power of two up to 1 MiB")
        return alignment

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text("a tensor name")
        (num_dims,) = self.unpack(_U32)
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.bad(f"{name} has {num_dims} dimensions (1 to {MAX_DIMS} are possible)")
        dims = self.unpack(_DIMS[num_dims])
        format_id, offset = self.unpack(_PLACE)
        if 0 in dims:
            raise self.bad(f"{name} has a dimension of size 0 ({list(dims[::-1])})")
        return name, dims[::-1], format_id, offset

    def place(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], data_start: int, alignment: int
    ) -> dict[str, TensorEntry]:
        """Turn offsets into file ranges and prove them inside the file, aligned and disjoint."""
        found: dict[str, TensorEntry] = {}
        for name, shape, format_id, offset in infos:
            if name in found:
                raise self.bad(f"tensor {name} appears twice")
            layout = format_by_id(format_id, tensor=f"{self.name}: {name}")
            if shape[-1] % layout.block:
                raise self.bad(
                    f"{name} has rows of {shape[-1]} elements, not whole {layout.name} blocks"
                )
            nbytes = prod(shape[:-1]) * layout.row_bytes(shape[-1])
            if offset % alignment:
                raise self.bad(f"{name} starts at {offset}, not at a multiple of {alignment}")
            if data_start + offset + nbytes > self.size:
                raise self.truncated(f"{name} ({layout.name} {list(shape)})")
            found[name] = TensorEntry(
                name=name, shape=shape, format=layout, offset=data_start + offset, nbytes=nbytes
            )
        self.check_disjoint(found)
        return found

    def check_disjoint(self, tensors: dict[str, TensorEntry]) -> None:
        stop, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda t: t.offset):
            if tensor.offset < stop:
                raise self.bad(f"{tensor.name} overlaps {before}")
            stop, before = tensor.offset + tensor.nbytes, tensor.name


_DIMS = {n: Struct(f"<{n}Q") for n in range(1, MAX_DIMS + 1)}
_PLACE = Struct("<IQ")
