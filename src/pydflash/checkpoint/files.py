"""open_checkpoint: one file, a set of split files or a safetensors directory, behind one interface.

Tensors are views of mapped files: nothing is read before it is used, nothing is copied.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pydflash.checkpoint.gguf_header import TensorEntry, read_header
from pydflash.checkpoint.mapped import MappedFile
from pydflash.checkpoint.meta import Meta
from pydflash.checkpoint.safetensors_header import read_safetensors_header
from pydflash.checkpoint.sniff import FileKind, file_kind
from pydflash.errors import CheckpointError
from pydflash.quant.formats import QuantFormat
from pydflash.quant.tensor import QuantTensor

_SPLIT = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf$")
_INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor and its place: shape in torch order [..., rows, cols], offset in bytes in file `file`."""

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    nbytes: int
    file: int = 0
    offset: int = 0


class Checkpoint:
    """Metadata and tensors of a model on disk. Meta comes from the first file of a split set."""

    def __init__(
        self,
        path: Path,
        kind: FileKind,
        meta: Meta,
        files: list[MappedFile],
        tensors: dict[str, TensorInfo],
        config: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.kind = kind
        self.meta = meta
        self.files = files
        self.tensors = tensors
        self.config: dict[str, Any] = config or {}

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def info(self, name: str) -> TensorInfo:
        found = self.tensors.get(name)
        if found is None:
            raise CheckpointError(
                f"{self.path.name} has no tensor {name}; it may be incomplete or of another architecture"
            )
        return found

    def tensor(self, name: str) -> QuantTensor:
        """The tensor's bytes as they lie in the file: a view, valid even after `close()`."""
        return self.view(self.info(name))

    def view(self, info: TensorInfo) -> QuantTensor:
        """What lies at a place in the files."""
        data = self.files[info.file].view(info.offset, info.nbytes)
        data = data.view(*info.shape[:-1], info.format.row_bytes(info.shape[-1]))
        return QuantTensor(name=info.name, data=data, format=info.format, shape=info.shape)

    def handle(self, name: str) -> tuple[Path, int]:
        """File and byte offset where the tensor begins, to read it by other means."""
        info = self.info(name)
        return self.files[info.file].path, info.offset

    def release(self, name: str | None = None) -> None:
        """Let the memory of a tensor (it was repacked or copied), or of everything, go.

        A later read loads it again.
        """
        if name is not None:
            info = self.info(name)
            self.files[info.file].release(info.offset, info.nbytes)
            return
        for file in self.files:
            file.release(0, file.size)

    def prefetch(self, name: str | None = None) -> None:
        """Have the system read one tensor, or everything, ahead of its use."""
        if name is not None:
            info = self.info(name)
            self.files[info.file].prefetch(info.offset, info.nbytes)
            return
        for file in self.files:
            file.prefetch()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file (any part of a split set), a safetensors file, or a directory of safetensors."""
    path = Path(path).expanduser()
    if path.is_dir():
        return _open_directory(path)
    if file_kind(path) == "gguf":
        return _open_gguf(path)
    return _open_safetensors(path, [path])


def _open_gguf(path: Path) -> Checkpoint:
    paths = _parts(path)
    files: list[MappedFile] = []
    tensors: dict[str, TensorInfo] = {}
    metas: list[Meta] = []
    for index, part in enumerate(paths):
        if file_kind(part) != "gguf":
            raise CheckpointError(f"{part.name} is not a GGUF file; download it again")
        file = MappedFile(part)
        header = read_header(file.buffer, part.name)
        files.append(file)
        metas.append(Meta(part.name, file.buffer, header.entries))
        _add(tensors, header.tensors, index, part.name)
    _check_split(path, metas, len(tensors))
    return Checkpoint(paths[0], "gguf", metas[0], files, tensors)


def _parts(path: Path) -> list[Path]:
    match = _SPLIT.match(path.name)
    if match is None:
        return [path]
    count = int(match["parts"])
    if not 1 <= int(match["part"]) <= count:
        raise CheckpointError(
            f"{path.name} numbers itself part {match['part']} of {match['parts']}; "
            "give it its original name back"
        )
    names = [f"{match['stem']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    for name in names:
        if not path.with_name(name).is_file():
            raise CheckpointError(
                f"{path.name} is one of {count} parts, and {name} is missing beside it; download it, too"
            )
    return [path.with_name(name) for name in names]


def _check_split(path: Path, metas: list[Meta], num_tensors: int) -> None:
    for index, meta in enumerate(metas):
        count = meta.int("split.count", default=1) or 1
        if count != len(metas):
            raise CheckpointError(
                f"{meta.name} is one of {count} parts, but {len(metas)} were found by its name; "
                f"parts must be named like model-00001-of-{count:05}.gguf"
            )
        if len(metas) > 1 and meta.int("split.no") != index:
            raise CheckpointError(
                f"{meta.name} says it is part {meta.int('split.no') + 1}; "
                "the files were renamed: download them again"
            )
    total = metas[0].int("split.tensors.count", default=None)
    if len(metas) > 1 and total is not None and total != num_tensors:
        raise CheckpointError(
            f"{path.name}: the parts hold {num_tensors} tensors of {total}; download them again"
        )


def _open_directory(path: Path) -> Checkpoint:
    index = path / _INDEX
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index} has no weight_map; download it again")
        names = sorted({str(name) for name in weight_map.values()})
        if any(Path(name).name != name for name in names):
            raise CheckpointError(f"{index} names files outside its directory; download it again")
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise CheckpointError(f"{path} lacks {missing[0]}, named by {_INDEX}; download it, too")
        checkpoint = _open_safetensors(path, [path / name for name in names])
        lost = [name for name in weight_map if name not in checkpoint.tensors]
        if lost:
            raise CheckpointError(f"{path}: no file holds {lost[0]}; download the model again")
        return checkpoint
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return _open_safetensors(path, found)
    ggufs = sorted(path.glob("*.gguf"))
    hint = f"name one file, for instance {ggufs[0]}" if ggufs else "name the model file"
    raise CheckpointError(
        f"{path} is a directory without {_INDEX} or a single .safetensors file; {hint}"
    )


def _open_safetensors(path: Path, paths: list[Path]) -> Checkpoint:
    files: list[MappedFile] = []
    tensors: dict[str, TensorInfo] = {}
    values: dict[str, str] = {}
    for index, part in enumerate(paths):
        if file_kind(part) != "safetensors":
            raise CheckpointError(f"{part.name} is not a safetensors file; download it again")
        file = MappedFile(part)
        found, metadata = read_safetensors_header(file.buffer, part.name)
        files.append(file)
        values.update(metadata)
        _add(tensors, found, index, part.name)
    config = paths[0].with_name("config.json")
    return Checkpoint(
        path,
        "safetensors",
        Meta.from_values(path.name, values),
        files,
        tensors,
        _read_json(config) if config.is_file() else None,
    )


def _add(
    tensors: dict[str, TensorInfo], found: dict[str, TensorEntry], file: int, name: str
) -> None:
    for entry in found.values():
        if entry.name in tensors:
            raise CheckpointError(
                f"{name} repeats tensor {entry.name} of an earlier part; download the files again"
            )
        tensors[entry.name] = TensorInfo(
            name=entry.name,
            shape=entry.shape,
            format=entry.format,
            nbytes=entry.nbytes,
            file=file,
            offset=entry.offset,
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError("larger than 100 MB")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object; download it again")
    return value
