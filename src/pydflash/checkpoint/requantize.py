"""quantize_file: rewrite a model with its matrices in other formats.

Reads through `open_checkpoint`, writes through `write_gguf`; the policy is `quant.mix`. At no time is more
than one packed tensor and a few decoded slices of it in memory.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from pydflash.checkpoint.files import Checkpoint, TensorInfo, open_checkpoint
from pydflash.checkpoint.writer import TensorSource, write_gguf
from pydflash.errors import CheckpointError, ConfigError, UnsupportedError
from pydflash.kernels.ref.quant import can_decode, dequantize
from pydflash.quant.encode import encode
from pydflash.quant.formats import QuantFormat
from pydflash.quant.mix import Mix, mix_type
from pydflash.quant.tensor import QuantTensor

Progress = Callable[[TensorInfo, QuantFormat], None]
"""Called with each tensor as stored and its new format, before the tensor is converted."""

_SLICE = 1 << 20  # elements a worker decodes and packs at a time
_QUANTIZATION_VERSION = 2  # of the block layouts, as GGUF counts them


def quantize_file(
    source: str | Path,
    dest: str | Path,
    type: str,
    progress: Progress | None = None,
    *,
    force: bool = False,
    threads: int | None = None,
) -> Path:
    """Write the GGUF file `source` to `dest` as `type` (a name in `quant.mix.MIXES`); return `dest`.

    Metadata is kept, but for `general.file_type` and `general.quantization_version`. `dest` appears when it
    is whole; an existing one is replaced only with `force`. `threads`: cores to use, default all. Raises
    ConfigError, CheckpointError, CapacityError (no room on the disk).
    """
    source, dest, kind = Path(source).expanduser(), Path(dest).expanduser(), mix_type(type)
    if dest.exists() and source.exists() and dest.samefile(source):
        raise ConfigError(f"{dest} is the file to read; give the result another name")
    if dest.exists() and not force:
        raise ConfigError(f"{dest} exists; remove it, or replace it with --force")
    if not dest.parent.is_dir():
        raise ConfigError(f"{dest.parent} is not a directory; create it first")
    overrides: dict[str, object] = {
        "general.file_type": kind.file_type,
        "general.quantization_version": None if kind.base.is_dense else _QUANTIZATION_VERSION,
    }
    with open_checkpoint(source) as checkpoint, workers(threads) as pool:
        if checkpoint.kind != "gguf":
            raise UnsupportedError(f"{source} is not a GGUF file; convert it to GGUF first")
        mix = Mix(kind, checkpoint.tensors)
        formats = {
            info.name: mix.format_of(info.name, info.shape, info.format)
            for info in checkpoint.tensors.values()
        }
        _check(checkpoint, formats)

        def converted(info: TensorInfo) -> TensorSource:
            target = formats[info.name]

            def make() -> QuantTensor:
                if progress is not None:
                    progress(info, target)
                tensor = requantize(checkpoint.tensor(info.name), target, pool)
                checkpoint.release(info.name)
                return tensor

            nbytes = _nbytes(info.shape, target)
            return replace(info, format=target, nbytes=nbytes), make

        plan = [converted(info) for info in checkpoint.tensors.values()]
        return write_gguf(dest, meta=checkpoint.meta, tensors=plan, overrides=overrides)


def requantize(
    tensor: QuantTensor, format: QuantFormat, pool: ThreadPoolExecutor | None = None
) -> QuantTensor:
    """The same numbers in another format, worked out in slices of rows. Same format: the tensor itself.

    The result does not depend on the slices or the pool.
    """
    if tensor.format is format:
        return tensor
    cols = tensor.cols
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    packed = torch.empty(rows.shape[0], format.row_bytes(cols), dtype=torch.uint8)
    step = max(1, _SLICE // cols)

    def convert(start: int) -> None:
        data = rows[start : start + step]
        part = QuantTensor(
            name=tensor.name, data=data, format=tensor.format, shape=(data.shape[0], cols)
        )
        try:
            packed[start : start + step] = encode(dequantize(part), format)
        except CheckpointError as error:
            raise CheckpointError(f"{tensor.name}: {error}") from None

    for _ in (pool.map if pool else map)(convert, range(0, rows.shape[0], step)):
        pass
    data = packed.view(*tensor.shape[:-1], packed.shape[-1])
    return QuantTensor(name=tensor.name, data=data, format=format, shape=tensor.shape)


@contextmanager
def workers(threads: int | None = None) -> Iterator[ThreadPoolExecutor]:
    """A pool for `requantize`, torch's own threads off meanwhile: the workers take whole slices instead."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads or before, thread_name_prefix="quantize") as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def _check(checkpoint: Checkpoint, formats: dict[str, QuantFormat]) -> None:
    """Refuse before the first byte is written."""
    for info in checkpoint.tensors.values():
        if formats[info.name] is not info.format and not can_decode(info.format):
            raise UnsupportedError(
                f"{info.name} is {info.format.name}, which cannot be decoded; "
                "start from a file in another type"
            )


def _nbytes(shape: tuple[int, ...], format: QuantFormat) -> int:
    count = format.row_bytes(shape[-1])
    for size in shape[:-1]:
        count *= size
    return count
