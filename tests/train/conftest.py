"""A tiny target and documents it wrote, shared by the tests of training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.train.dense import DenseTarget
from pydflash.train.documents import Document
from pydflash.train.harvest import Harvest, harvest
from pydflash.train.language import Language
from pydflash.train.prompts import Prompt, ask
from pydflash.train.sums import sums
from pydflash.train.target import stop_tokens
from tests.tiny.gguf import tiny_gguf, tiny_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A three-layer llama whose layers change little: a token nearly decides the next, so there is
    something to learn."""

    def calm(*args: Any, **options: Any) -> dict[str, np.ndarray]:
        weights = tiny_weights(*args, **options)
        for name in weights:
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                weights[name] *= np.float32(0.05)
        return weights

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.tiny.gguf.tiny_weights", calm)
        path = tmp_path_factory.mktemp("train") / "target.gguf"
        return tiny_gguf(path, "llama", layers=3)


@pytest.fixture(scope="session")
def target(target_path: Path) -> DenseTarget:
    return DenseTarget(open_checkpoint(target_path), CPU, torch.float32)


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    import random

    rng = random.Random(1)
    return [ask("math", text[:40]) for text in sums(rng, 60)] + [
        Prompt(domain="code", text=f"def f{i}(x):") for i in range(60)
    ]


@pytest.fixture(scope="session")
def documents(target: DenseTarget, target_path: Path, prompts: list[Prompt]) -> list[Document]:
    """Answers of up to 30 tokens, greedy."""
    checkpoint = open_checkpoint(target_path)
    language = Language.of(checkpoint)
    options = Harvest(own=0, follow_ups=0.0, sampled=0.0, max_new=30)
    stop = stop_tokens(target_path, sorted(language.tokenizer.eog))
    return harvest(target, language, stop, prompts, options, lambda what, tokens: None)
