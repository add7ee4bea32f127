"""Drafter files that were edited after they were written, and the question whether they are refused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.meta import Meta
from pydflash.checkpoint.writer import write_gguf as write_file
from pydflash.draft.files import open_drafter
from pydflash.draft.write import write_gguf, write_safetensors
from pydflash.errors import CheckpointError
from tests.tiny.draft import CASES

Tensor = torch.Tensor
Values = dict[str, Any]


def zlab(
    at: Path,
    case: str = "v1",
    *,
    config: Callable[[Values], object] | None = None,
    tensors: Callable[[dict[str, Tensor]], object] | None = None,
) -> Path:
    """A safetensors drafter whose config.json and tensors (by z-lab's names) were edited."""
    write_safetensors(CASES[case].config, CASES[case].tensors(), at)
    if config is not None:
        values = json.loads((at / "config.json").read_text())
        config(values)
        (at / "config.json").write_text(json.dumps(values))
    if tensors is not None:
        stored = load_file(at / "model.safetensors")
        tensors(stored)
        save_file({n: t.contiguous() for n, t in stored.items()}, at / "model.safetensors")
    return at


def seeds(
    at: Path, case: str = "v1", *, drop: tuple[str, ...] = (), tensors: Any = None, **keys: Any
) -> Path:
    """A GGUF drafter of the seeds' dialect whose keys (below the architecture) were edited."""
    return _edit(write_gguf(CASES[case].config, CASES[case].tensors(), at), drop, tensors, keys)


def llama(at: Path, tokenizer: Meta, case: str = "v1", **edits: Any) -> Path:
    keys = {k: v for k, v in edits.items() if k not in ("drop", "tensors")}
    path = write_gguf(
        CASES[case].config, CASES[case].tensors(), at, dialect="dflash", tokenizer=tokenizer
    )
    return _edit(path, edits.get("drop", ()), edits.get("tensors"), keys)


def _edit(path: Path, drop: tuple[str, ...], tensors: Any, keys: Values) -> Path:
    with open_checkpoint(path) as checkpoint:
        arch = checkpoint.meta.arch
        held = {name: checkpoint.tensor(name) for name in checkpoint.tensors}
        infos = dict(checkpoint.tensors)
        if tensors is not None:
            names = {name: tensors(name) for name in infos}
            infos = {n: replace(infos[o], name=n) for o, n in names.items() if n is not None}
            held = {n: held[o] for o, n in names.items() if n is not None}
        plan = [(info, lambda n=name: held[n]) for name, info in infos.items()]
        changes = {f"{arch}.{key.replace('__', '.')}": value for key, value in keys.items()}
        changes |= dict.fromkeys(drop)
        edited = path.with_name("edited.gguf")
        write_file(edited, meta=checkpoint.meta, tensors=plan, overrides=changes)
    return edited


def refused(path: Path, *words: str, error: type[Exception] = CheckpointError) -> None:
    with pytest.raises(error) as caught:
        open_drafter(path)
    for word in words:
        assert word in str(caught.value)
