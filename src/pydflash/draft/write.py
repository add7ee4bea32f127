"""write_safetensors and write_gguf: a drafter into any of its containers.

What a container cannot say is refused by name; nothing is lost in silence. Tensors come by canonical name
(draft.config), as torch tensors or as they lie in a file, and are checked like those of a file.
"""

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from pydflash.checkpoint import writer
from pydflash.checkpoint.files import TensorInfo
from pydflash.checkpoint.meta import Meta
from pydflash.checkpoint.requantize import Progress, requantize
from pydflash.draft.bounds import check_config
from pydflash.draft.config import DraftConfig
from pydflash.draft.for_llama_cpp import SUCCESSORS, spread_rows, with_identity_convs
from pydflash.draft.formats import DraftFormats
from pydflash.draft.layout import check_tensors, expected_shapes
from pydflash.draft.names import Container, from_canonical
from pydflash.draft.read_gguf import LLAMA_CPP, SEEDS
from pydflash.draft.write_gguf_keys import llama_cpp_keys, seeds_keys
from pydflash.draft.write_json import config_json
from pydflash.errors import ConfigError, UnsupportedError
from pydflash.kernels.ref.quant import dequantize
from pydflash.quant.formats import FORMATS, QuantFormat
from pydflash.quant.mix import mix_type
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor | QuantTensor]

_FORMATS = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int64: "I64",
}
_DTYPES = {name: dtype for dtype, name in _FORMATS.items()}
_QUANTIZATION_VERSION = 2


def write_gguf(
    config: DraftConfig,
    tensors: Tensors,
    path: str | Path,
    *,
    dialect: str = "dflash-draft",
    type: str | None = None,
    tokenizer: Meta | None = None,
    progress: Progress | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> Path:
    """Write the GGUF file `path` and return it.

    `dialect` is the architecture: one of the seeds' ("dflash-draft", "qwen35-dflash-draft",
    "gemma4-dflash-draft") or llama.cpp's "dflash", which needs the target's `tokenizer` keys. `type` is a
    name in `quant.mix.MIXES`; without it matrices keep their format. Raises UnsupportedError for what the
    dialect cannot say, CheckpointError for tensors that do not fit `config`, CapacityError for a full disk.
    """
    container: Container = "llama.cpp" if dialect == LLAMA_CPP else "seeds"
    if container == "seeds" and dialect not in SEEDS:
        raise ConfigError(f"{dialect!r} is no dialect; use {', '.join((*SEEDS, LLAMA_CPP))}")
    if container == "llama.cpp" and tokenizer is None:
        raise ConfigError(
            "llama.cpp reads a drafter's vocabulary from its own file: name the target's GGUF file"
        )
    if container == "llama.cpp":
        config, tensors = with_identity_convs(config, tensors)
    packed = _packed(config, tensors, container)
    kind = None if type is None else mix_type(type)
    formats = DraftFormats(kind, packed)
    plan: list[writer.TensorSource] = []
    for name, (theirs, tensor) in packed.items():
        target = formats.format_of(name, tensor.shape, tensor.format)
        plan.append(_source(theirs, tensor, target, progress, pool))
    keys: dict[str, object] = {
        "general.architecture": dialect,
        "general.type": "model",
        "general.name": _title(config),
    }
    if kind is not None:
        keys["general.file_type"] = kind.file_type
    if any(not info.format.is_dense for info, _ in plan):
        keys["general.quantization_version"] = _QUANTIZATION_VERSION
    if container == "seeds":
        return writer.write_gguf(path, meta=keys | seeds_keys(config, dialect), tensors=plan)
    assert tokenizer is not None
    dropped = {key: None for key in tokenizer if not key.startswith("tokenizer.")}
    keys |= {"general.alignment": 32} | llama_cpp_keys(config, tokenizer, packed)
    return writer.write_gguf(path, meta=tokenizer, tensors=plan, overrides=dropped | keys)


def write_safetensors(
    config: DraftConfig,
    tensors: Tensors,
    directory: str | Path,
    *,
    type: str | None = None,
) -> Path:
    """Write `model.safetensors` and `config.json` into `directory` (made if missing) and return it.

    `type` F32, F16 or BF16 converts the matrices; without it dense ones keep theirs and quantised ones
    become F32. Raises as `write_gguf` does.
    """
    if type is not None and type.upper() not in ("F32", "F16", "BF16"):
        raise ConfigError(f"safetensors files hold F32, F16 or BF16, not {type}")
    directory = Path(directory)
    packed = _packed(config, tensors, "safetensors")
    values = config_json(config, packed)
    stored = {
        theirs: _dense(tensor, None if name == "d2t" or type is None else type.upper())
        for name, (theirs, tensor) in packed.items()
    }
    partial = directory / f".model.{os.getpid()}.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(stored, partial, metadata={"format": "pt"})
        partial.replace(directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return directory


def as_quant(name: str, value: Tensor | QuantTensor) -> QuantTensor:
    """A torch tensor (F32, F16, BF16, int32 or int64, any device) as the bytes of a file."""
    if isinstance(value, QuantTensor):
        return value
    format = _FORMATS.get(value.dtype)
    if format is None:
        raise ConfigError(f"{name} is {value.dtype}, which no drafter file holds; use F32 or BF16")
    data = value.detach().cpu().contiguous()
    data = data.view(*data.shape, 1).view(torch.uint8).flatten(-2)
    return QuantTensor(name=name, data=data, format=FORMATS[format], shape=tuple(value.shape))


def _packed(
    config: DraftConfig, tensors: Tensors, container: Container
) -> dict[str, tuple[str, QuantTensor]]:
    """By canonical name, in the configuration's order: the container's name and the tensor. All checked."""
    check_config(config)
    packed = {name: as_quant(name, value) for name, value in tensors.items()}
    shapes = {name: tensor.shape for name, tensor in packed.items()}
    check_tensors(config, shapes, "this drafter")
    order = [*expected_shapes(config, shapes), *packed]  # the second for factors beside matrices
    found = {}
    for name in dict.fromkeys(order):
        theirs = from_canonical(container, name)
        if theirs is None:
            raise UnsupportedError(
                f"{_called(container)} has no place for {name}; write the drafter as dflash-draft GGUF"
            )
        found[name] = (theirs, packed[name])
    if container == "llama.cpp" and "d2t" in found:
        theirs, tensor = found["d2t"]
        ids = token_ids(tensor)
        found["d2t"] = (theirs, as_quant("d2t", ids))
        if SUCCESSORS in found:
            theirs, tensor = found[SUCCESSORS]
            found[SUCCESSORS] = (theirs, spread_rows(tensor, ids, config.vocab))
    return found


def _source(
    theirs: str,
    tensor: QuantTensor,
    target: QuantFormat,
    progress: Progress | None,
    pool: ThreadPoolExecutor | None,
) -> writer.TensorSource:
    rows = tensor.data.numel() // tensor.data.shape[-1]
    nbytes = rows * target.row_bytes(tensor.cols)
    info = TensorInfo(name=theirs, shape=tensor.shape, format=target, nbytes=nbytes)

    def make() -> QuantTensor:
        if progress is not None:
            progress(replace(info, format=tensor.format, nbytes=tensor.nbytes), target)
        return requantize(tensor, target, pool)

    return info, make


def _dense(tensor: QuantTensor, wanted: str | None) -> Tensor:
    if wanted is None:
        wanted = tensor.format.name if tensor.format.name in _DTYPES else "F32"
    if len(tensor.shape) == 1 and tensor.format.name in ("F32", "F16", "BF16"):
        wanted = tensor.format.name if wanted != "BF16" else wanted
    if tensor.format.name == wanted:
        data = tensor.data.clone(memory_format=torch.contiguous_format)
        return data.view(_DTYPES[wanted])
    return dequantize(tensor).to(_DTYPES[wanted])


def token_ids(d2t: QuantTensor) -> Tensor:
    """The target's token ids of a reduced vocabulary, int64 [Vd], from what `d2t` stores."""
    ids = d2t.data.clone().view(_DTYPES[d2t.format.name]).long()
    return ids + torch.arange(len(ids))


def _title(config: DraftConfig) -> str:
    return config.card.get("name", f"DFlash-Draft-{config.hidden}h-{config.layers}L")


def _called(container: Container) -> str:
    return {"safetensors": "z-lab's safetensors form", "llama.cpp": "llama.cpp's dialect"}.get(
        container, container
    )
