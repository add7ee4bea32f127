"""open_drafter: a DFlash drafter in any of its containers, under one configuration and one set of names.

Nothing is read but headers. Every tensor has been checked against the configuration by name and shape.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from pydflash.checkpoint.files import Checkpoint, TensorInfo, open_checkpoint
from pydflash.draft.bounds import check_config
from pydflash.draft.config import DraftConfig
from pydflash.draft.for_llama_cpp import SUCCESSORS, pick_rows
from pydflash.draft.layout import Shapes, check_tensors, expected_shapes
from pydflash.draft.names import Container, to_canonical
from pydflash.draft.read_gguf import LLAMA_CPP, SEEDS, read_llama_cpp, read_seeds
from pydflash.draft.read_json import read_json
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels.ref.quant import dequantize
from pydflash.quant.tensor import QuantTensor

Tensors = dict[str, TensorInfo]

# Copies of the target's own tensors, and tables that others imply.
_NOT_OURS = frozenset(
    {"embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight", "t2d"}
)
_BUFFERS = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_FUSED = re.compile(r"^(layers\.\d+\.self_attn)\.qkv_proj\.(weight|bias)$")
_SINKS = re.compile(r"\.(sinks|attn_sinks)(\.weight)?$")


class DraftCheckpoint(Checkpoint):
    """A drafter's file, its tensors under canonical names. Its `d2t` holds differences, as ours do."""

    absolute_ids = False
    successors: TensorInfo | None = None
    """The selector's codebook where it has a row for every token, and the drafted ones are to be picked."""

    def tensor(self, name: str) -> QuantTensor:
        if name == SUCCESSORS and self.successors is not None:
            return pick_rows(self.view(self.successors), self._ids())
        tensor = super().tensor(name)
        if name != "d2t" or not self.absolute_ids:
            return tensor
        ids = self._ids()
        ids -= torch.arange(len(ids))
        dtype = torch.int64 if tensor.format.name == "I64" else torch.int32
        return replace(tensor, data=ids.to(dtype).view(torch.uint8))

    def _ids(self) -> torch.Tensor:
        stored = super().tensor("d2t")
        dtype = torch.int64 if stored.format.name == "I64" else torch.int32
        return stored.data.clone().view(dtype).long()


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFile:
    """An open drafter. `checkpoint` knows its tensors by canonical name (draft.config); `notes` are
    sentences for the person who opened it."""

    config: DraftConfig
    checkpoint: Checkpoint
    container: Container
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def architecture(self) -> str | None:
        """`general.architecture` of a GGUF file."""
        return self.checkpoint.meta.arch if self.checkpoint.kind == "gguf" else None

    def find(self, name: str) -> QuantTensor | None:
        """A tensor by canonical name, or None: what `draft.dflash` reads a drafter by."""
        return self.checkpoint.tensor(name) if name in self.checkpoint.tensors else None

    def tensors(self) -> dict[str, QuantTensor]:
        """Every tensor by canonical name: views of the file, nothing read yet."""
        return {name: self.checkpoint.tensor(name) for name in self.checkpoint.tensors}

    def __enter__(self) -> "DraftFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.checkpoint.close()


def is_drafter(checkpoint: Checkpoint) -> bool:
    """Whether an open file is a DFlash drafter (sound or not)."""
    if checkpoint.kind == "gguf":
        return checkpoint.meta.arch in (*SEEDS, LLAMA_CPP)
    return any(name.endswith("fc.weight") for name in checkpoint.tensors) and any(
        key in checkpoint.config for key in ("dflash_config", "speculators_model_type")
    )


def open_drafter(path: str | Path) -> DraftFile:
    """Open a drafter: a safetensors file or directory with config.json, or a GGUF file.

    Raises CheckpointError that names what is missing, unknown, of the wrong shape or not stated.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.kind == "safetensors":
        return _open(checkpoint, "safetensors", _read_safetensors)
    if checkpoint.meta.arch == LLAMA_CPP:
        return _open(checkpoint, "llama.cpp", lambda c, s: read_llama_cpp(c.meta, s))
    if checkpoint.meta.arch in SEEDS:
        return _open(checkpoint, "seeds", lambda c, s: read_seeds(c.meta, s))
    raise UnsupportedError(
        f"{checkpoint.path.name} is no DFlash drafter: its architecture is {checkpoint.meta.arch}, a "
        f"drafter's is {', '.join(SEEDS)} or {LLAMA_CPP}"
    )


def _open(
    checkpoint: Checkpoint,
    container: Container,
    read: Callable[[Checkpoint, Shapes], tuple[DraftConfig, list[str]]],
) -> DraftFile:
    where = checkpoint.path.name
    tensors, notes = _canonical(checkpoint, container)
    notes += _leave_full_head(tensors, checkpoint, container)
    config, more = read(checkpoint, {name: info.shape for name, info in tensors.items()})
    notes += more + _mask_row(tensors, config, where)
    check_config(config)
    whole = _drafted_successors(tensors, config) if container == "llama.cpp" else None
    shapes = {name: info.shape for name, info in tensors.items()}
    for name, shape in expected_shapes(config, shapes).items():
        # Containers differ in leading ones: [1, C] or [C].
        if name in tensors and _strip(shapes[name]) == _strip(shape):
            tensors[name] = replace(tensors[name], shape=shape)
    check_tensors(config, {name: info.shape for name, info in tensors.items()}, where)
    ours = DraftCheckpoint(
        checkpoint.path,
        checkpoint.kind,
        checkpoint.meta,
        checkpoint.files,
        tensors,
        checkpoint.config,
    )
    ours.absolute_ids = container == "llama.cpp"
    ours.successors = whole
    _check_ids(ours, config)
    return DraftFile(config=config, checkpoint=ours, container=container, notes=tuple(notes))


def _read_safetensors(checkpoint: Checkpoint, shapes: Shapes) -> tuple[DraftConfig, list[str]]:
    if not checkpoint.config:
        raise CheckpointError(
            f"{checkpoint.path.name} has no config.json beside it; fetch that file, too"
        )
    return read_json(checkpoint.config, shapes, checkpoint.path.name)


def _canonical(checkpoint: Checkpoint, container: Container) -> tuple[Tensors, list[str]]:
    """The tensors under canonical names, and notes of what was left out."""
    found: Tensors = {}
    notes = []
    for name, info in _unfuse(checkpoint, container).items():
        if _SINKS.search(name):
            raise UnsupportedError(
                f"{checkpoint.path.name} has {name}: drafters with attention sinks are not built yet"
            )
        ours = to_canonical(container, name)
        if _BUFFERS.search(ours):
            continue
        if ours in _NOT_OURS:
            notes.append(f"{name} is left out: the target's own serves")
            continue
        if ours in found:
            raise CheckpointError(
                f"{checkpoint.path.name} has {ours} under two names; convert the drafter again"
            )
        found[ours] = replace(info, name=ours)
    return found, notes


def _unfuse(checkpoint: Checkpoint, container: Container) -> Tensors:
    """Split `qkv_proj` where a checkpoint fuses it; rows are contiguous, so these are views."""
    fused = {name: m for name in checkpoint.tensors if (m := _FUSED.match(name))}
    if container != "safetensors" or not fused:
        return checkpoint.tensors
    config: Any = checkpoint.config
    sizes = [config.get(key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim")]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise CheckpointError(
            f"{checkpoint.path.name} fuses q, k and v, and config.json does not state the heads, "
            "kv heads and head_dim to split them by"
        )
    q, kv = sizes[0] * sizes[2], sizes[1] * sizes[2]
    found = {name: info for name, info in checkpoint.tensors.items() if name not in fused}
    for name, match in fused.items():
        info, start = checkpoint.tensors[name], 0
        if info.shape[0] != q + 2 * kv:
            raise CheckpointError(
                f"{name} has {info.shape[0]} rows, config.json implies {q + 2 * kv}; fetch both again"
            )
        row = info.nbytes // info.shape[0]
        for part, rows in (("q", q), ("k", kv), ("v", kv)):
            found[f"{match[1]}.{part}_proj.{match[2]}"] = replace(
                info,
                shape=(rows, *info.shape[1:]),
                nbytes=rows * row,
                offset=info.offset + start * row,
            )
            start += rows
    return found


def _leave_full_head(tensors: Tensors, checkpoint: Checkpoint, container: Container) -> list[str]:
    """A head over the whole vocabulary is a copy of the target's."""
    if "output.weight" not in tensors or "d2t" in tensors:
        return []
    rows = tensors["output.weight"].shape[0]
    if rows != _vocab(checkpoint, container):
        return []  # reduced, and its d2t will be missed by name
    del tensors["output.weight"]
    return ["its own head over the whole vocabulary is left out: the target's serves"]


def _vocab(checkpoint: Checkpoint, container: Container) -> int | None:
    if container == "safetensors":
        inner = checkpoint.config.get("transformer_layer_config")
        tables = [checkpoint.config, inner if isinstance(inner, dict) else {}]
        found = [table["vocab_size"] for table in tables if "vocab_size" in table]
        return found[0] if found and isinstance(found[0], int) else None
    stated = checkpoint.meta.int("{arch}.vocab_size", default=0)
    if not stated and "tokenizer.ggml.tokens" in checkpoint.meta:
        stated = checkpoint.meta.entry("tokenizer.ggml.tokens").count
    return stated


def _mask_row(tensors: Tensors, config: DraftConfig, where: str) -> list[str]:
    """Of an embedding table in the file (llama.cpp) only the mask's row may differ from the target's."""
    table = tensors.pop("token_embd.weight", None)
    if table is None:
        return []
    if table.shape != (config.vocab, config.hidden) or not 0 <= config.mask_token < config.vocab:
        raise CheckpointError(
            f"{where}: token_embd.weight is {list(table.shape)}, the configuration implies "
            f"{[config.vocab, config.hidden]}; download or convert the drafter again"
        )
    row, name = table.nbytes // config.vocab, "dflash.mask_embedding"
    tensors[name] = replace(
        table,
        name=name,
        shape=(config.hidden,),
        nbytes=row,
        offset=table.offset + row * config.mask_token,
    )
    return ["of its embeddings only the mask's is used: the target's serve"]


def _drafted_successors(tensors: Tensors, config: DraftConfig) -> TensorInfo | None:
    """llama.cpp's codebook of successors covers the whole vocabulary; of a reduced one, ours does not."""
    found = tensors.get(SUCCESSORS)
    if config.draft_vocab is None or found is None or found.shape[0] != config.vocab:
        return None
    row = found.nbytes // config.vocab
    shape = (config.draft_vocab, *found.shape[1:])
    tensors[SUCCESSORS] = replace(found, shape=shape, nbytes=config.draft_vocab * row)
    return found


def _check_ids(checkpoint: Checkpoint, config: DraftConfig) -> None:
    if config.draft_vocab is None:
        return
    if checkpoint.info("d2t").format.name not in ("I32", "I64"):
        raise CheckpointError(
            f"{checkpoint.path.name}: d2t must hold whole numbers (I32, I64); convert the drafter again"
        )
    # f32 holds every id of a vocabulary below 2^24, which is the bound.
    ids = dequantize(checkpoint.tensor("d2t")).long() + torch.arange(config.draft_vocab)
    if bool((ids < 0).any()) or bool((ids >= config.vocab).any()):
        raise CheckpointError(
            f"{checkpoint.path.name}: d2t leads outside the vocabulary of {config.vocab}; "
            "download or convert the drafter again"
        )
    if len(set(ids.tolist())) != len(ids):
        raise CheckpointError(
            f"{checkpoint.path.name}: d2t leads to the same token twice; convert the drafter again"
        )


def _strip(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
