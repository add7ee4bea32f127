"""write_gguf: metadata and tensors to a new GGUF file, through the official package.

Metadata of a GGUF file is copied as bytes, so that every key keeps its exact type and value. The file
appears under its name only when it is whole and on disk.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from pydflash.checkpoint.files import TensorInfo
from pydflash.checkpoint.gguf_values import Entry, ValueType
from pydflash.checkpoint.meta import Meta
from pydflash.errors import CapacityError, CheckpointError, ConfigError, UnsupportedError
from pydflash.quant.tensor import QuantTensor

TensorSource = tuple[TensorInfo, Callable[[], QuantTensor]]

_MIB = 1 << 20
_QUOTA = getattr(errno, "EDQUOT", errno.ENOSPC)  # Windows has none
# Room for the header of any model, besides its tensors.
_HEADER_ALLOWANCE = 32 * _MIB


def write_gguf(
    path: str | Path,
    *,
    meta: Meta | Mapping[str, object],
    tensors: Sequence[TensorSource],
    overrides: Mapping[str, object] | None = None,
) -> Path:
    """Write `path` and return it. Tensors are asked for one at a time, in order.

    Keys of `overrides` replace or add to those of `meta`, None removes one; a replaced key keeps its type,
    a new one is BOOL, UINT32, FLOAT32, STRING or an array of these. Keys of a split set are dropped.
    Raises CapacityError when the disk cannot hold the file; nothing is left behind then.
    """
    path = Path(path)
    total = sum(info.nbytes for info, _ in tensors)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _disk_errors(path, total):
        _require_space(path, total)
        try:
            writer = _Writer(partial, "")
            _add_metadata(writer, meta, overrides or {})
            _write(writer, tensors)
            partial.replace(path)
            _sync_directory(path.parent)
        finally:
            partial.unlink(missing_ok=True)
    return path


class Int32s(list[int]):
    """A metadata array to be written as INT32, where readers insist on it."""


class _Raw(bytes):
    """A metadata value that is already in the file's own form."""


class _Writer(GGUFWriter):
    def _pack_val(
        self,
        val: Any,
        vtype: GGUFValueType,
        add_vtype: bool,
        sub_type: GGUFValueType | None = None,
    ) -> bytes:
        if isinstance(val, _Raw):
            return pack("<I", int(vtype)) + val
        packed: bytes = super()._pack_val(val, vtype, add_vtype, sub_type)
        return packed


def _add_metadata(
    writer: _Writer, meta: Meta | Mapping[str, object], overrides: Mapping[str, object]
) -> None:
    writer.kv_data[0].clear()  # the constructor has put an architecture there
    known = meta if isinstance(meta, Meta) else Meta.from_values("metadata", meta)
    for key in known:
        if key in overrides or key.startswith("split."):
            continue
        entry, raw = known.entry(key), known.raw(key)
        if raw is not None:
            writer.add_key_value(key, _Raw(raw), GGUFValueType(entry.type))
        else:
            _add_plain(writer, key, known.get(key), None)
    for key, value in overrides.items():
        if value is not None:
            _add_plain(writer, key, value, known.entry(key) if key in known else None)
    alignment = known.int("general.alignment", default=32)
    writer.data_alignment = int(overrides.get("general.alignment") or alignment)  # type: ignore[call-overload]


def _add_plain(writer: _Writer, key: str, value: object, before: Entry | None) -> None:
    """Add a Python value in the type of the entry it replaces, else in the one that suits it."""
    if isinstance(value, (list, tuple)):
        if not value:  # the package has no form for an array of nothing
            return
        if isinstance(value, Int32s):
            item = GGUFValueType.INT32
        elif before is not None and before.item is not None:
            item = GGUFValueType(before.item)
        else:
            # min() so that one negative number makes them all signed.
            item = _plain_type(min(value) if isinstance(value[0], int) else value[0])
        writer.add_key_value(key, list(value), GGUFValueType.ARRAY, item)
    elif before is None or before.type is ValueType.ARRAY:
        writer.add_key_value(key, value, _plain_type(value))
    else:
        writer.add_key_value(key, value, GGUFValueType(before.type))


def _plain_type(value: object) -> GGUFValueType:
    if isinstance(value, bool):
        return GGUFValueType.BOOL
    if isinstance(value, int):
        return GGUFValueType.UINT32 if 0 <= value < 1 << 32 else GGUFValueType.INT64
    if isinstance(value, float):
        return GGUFValueType.FLOAT32
    if isinstance(value, str):
        return GGUFValueType.STRING
    raise TypeError(f"no metadata type holds {type(value).__name__}")


def _write(writer: _Writer, tensors: Sequence[TensorSource]) -> None:
    for info, _ in tensors:
        try:
            kind = GGMLQuantizationType(info.format.ggml_id)
        except ValueError:
            raise UnsupportedError(
                f"{info.name}: the installed gguf package cannot write {info.format.name}; update it"
            ) from None
        # A type other than uint8 tells the package that the shape counts elements, not bytes.
        writer.add_tensor_info(info.name, info.shape, np.dtype(np.float32), info.nbytes, kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for info, source in tensors:
            tensor = source()
            if tensor.shape != info.shape or tensor.format is not info.format:
                raise CheckpointError(
                    f"{info.name} was announced as {info.format.name} {list(info.shape)}, "
                    f"but came as {tensor.format.name} {list(tensor.shape)}"
                )
            writer.write_tensor_data(tensor.data.cpu().contiguous().numpy())
        for file in writer.fout or ():
            file.flush()
            os.fsync(file.fileno())
    finally:
        for file in writer.fout or ():
            file.close()


def _require_space(path: Path, total: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < total:
        raise _no_space(path, total, free)


@contextmanager
def _disk_errors(path: Path, total: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # numpy's tofile reports a short write without a number.
        short = error.errno is None and "requested" in str(error)
        if short or error.errno in (errno.ENOSPC, _QUOTA, errno.EFBIG):
            raise _no_space(path, total, None) from None
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def _no_space(path: Path, total: int, free: int | None) -> CapacityError:
    there = "" if free is None else f", {free // _MIB} MiB are free"
    return CapacityError(
        f"no space for {path}: about {(total + _HEADER_ALLOWANCE) // _MIB} MiB are needed{there}; "
        "free some or write elsewhere"
    )


def _sync_directory(directory: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
