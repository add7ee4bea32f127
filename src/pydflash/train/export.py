"""export: a trained drafter as files, with its card.

The card travels in the file's metadata (short strings, which loading checks against the target) and lies
beside it as JSON with everything measured.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pydflash.checkpoint.files import Checkpoint
from pydflash.draft.config import DraftConfig
from pydflash.draft.fit import TARGET, TARGET_LAYERS, TEMPLATE, template_mark
from pydflash.draft.write import write_gguf, write_safetensors
from pydflash.errors import ConfigError

Tensor = torch.Tensor


DIALECTS = ("dflash-draft", "dflash", "safetensors")


def target_card(checkpoint: Checkpoint, template: str, layers: int) -> dict[str, str]:
    """What a drafter remembers of its target: name, depth, template and the file itself."""
    digest = hashlib.sha256()
    with open(checkpoint.path, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return {
        TARGET: checkpoint.meta.str("general.name", default=checkpoint.path.stem),
        TARGET_LAYERS: str(layers),
        TEMPLATE: template_mark(template),
        "target_sha256": digest.hexdigest(),
    }


def trained_card(
    *, documents: int, tokens: int, steps: int, acceptance: Mapping[str, Mapping[str, float]]
) -> dict[str, str]:
    """What a drafter remembers of its making."""
    every = acceptance.get("all", {})
    return {
        "documents": str(documents),
        "answer_tokens": str(tokens),
        "steps": str(steps),
        "acceptance": ", ".join(f"{way} {length:.2f}" for way, length in every.items()),
    }


def write_drafter(
    config: DraftConfig,
    tensors: Mapping[str, Tensor],
    path: Path,
    *,
    dialect: str,
    type: str,
    target: Checkpoint,
    head: Tensor | None = None,
) -> Path:
    """Write one file (a directory for safetensors). `head` f32 [Vd, E]: llama.cpp wants its own copy."""
    if dialect not in DIALECTS:
        raise ConfigError(f"{dialect!r} is no form of drafter; choose {', '.join(DIALECTS)}")
    if dialect == "safetensors":
        return write_safetensors(config, tensors, path, type="BF16")
    if dialect == "dflash" and config.draft_vocab is not None and head is not None:
        tensors = {**tensors, "output.weight": head}
    return write_gguf(config, tensors, path, dialect=dialect, type=type, tokenizer=target.meta)


def write_card(path: Path, card: Mapping[str, Any]) -> Path:
    """The whole card as JSON."""
    path.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    return path
