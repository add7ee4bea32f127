"""Distance of one set of logits from another: mean KL and top-1 agreement over tests/golden/text."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pydflash.bench.harness import Rig
from pydflash.checkpoint.files import open_checkpoint
from pydflash.config import EngineConfig, RuntimeConfig, StateConfig
from pydflash.service.build import build_language

Tensor = torch.Tensor

TEXTS = Path(__file__).parents[1] / "golden" / "text"
DOCUMENTS = ("code", "prose")
WINDOW = 512
REFERENCE = EngineConfig(
    runtime=RuntimeConfig(ops="ref", threads=1),
    state=StateConfig(cache_type_k="f32", cache_type_v="f32", max_ctx=WINDOW),
)


@dataclass(slots=True)
class Distance:
    """KL(reference || other) in nats and top-1 agreement, summed over positions."""

    positions: int = 0
    kl: float = 0.0
    agreed: int = 0

    def add(self, reference: Tensor, other: Tensor) -> None:
        """Logits f32 [T, V] of the same positions."""
        p = torch.log_softmax(reference.double(), -1)
        q = torch.log_softmax(other.double(), -1)
        self.kl += float((p.exp() * (p - q)).sum())
        self.agreed += int((reference.argmax(-1) == other.argmax(-1)).sum())
        self.positions += len(reference)

    @property
    def mean_kl(self) -> float:
        return self.kl / self.positions

    @property
    def top1(self) -> float:
        return self.agreed / self.positions


def windows(model: Path, document: str) -> Iterator[list[int]]:
    """The document's tokens in pieces of WINDOW, each to be read from an empty context."""
    with open_checkpoint(model) as checkpoint:
        tokenizer, _ = build_language(checkpoint)
    tokens = tokenizer.encode((TEXTS / f"{document}.txt").read_text("utf-8"))
    for start in range(0, len(tokens), WINDOW):
        yield tokens[start : start + WINDOW]


def reference(rig: Rig, tokens: list[int]) -> Tensor:
    """F32 logits [T, V] of the reference path, from an empty context."""
    rig.clear()
    return rig.read_prompt(tokens, every=True)
