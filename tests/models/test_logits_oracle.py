"""Logits of the reference path against `transformers` on the same dequantised weights, F32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pydflash.bench.harness import Rig
from pydflash.config import EngineConfig, RuntimeConfig, StateConfig
from tests.oracles.logits_transformers import oracle_logits, transformers_model
from tests.tiny.gguf import tiny_gguf

BOUND = 1e-3
CONFIG = EngineConfig(
    runtime=RuntimeConfig(ops="ref", threads=1),
    state=StateConfig(cache_type_k="f32", cache_type_v="f32", max_ctx=320),
)
YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"arch": "llama"},
    "llama-tied": {"arch": "llama", "tied": True},
    "llama-one-kv-head": {"arch": "llama", "heads": 6, "kv_heads": 1, "hidden": 96},
    "llama-wide-heads": {"arch": "llama", "head_dim": 32},
    "llama-bias": {"arch": "llama", "bias": True},
    "llama-linear": {"arch": "llama", "rope": {"scaling.type": "linear", "scaling.factor": 4.0}},
    "llama-yarn": {"arch": "llama", "rope": YARN},
    "llama-factors": {"arch": "llama", "rope_factors": True},
    "llama-q8": {"arch": "llama", "formats": "Q8_0"},
    "qwen3": {"arch": "qwen3"},
    "qwen3-tied": {"arch": "qwen3", "tied": True},
    "qwen3-yarn": {"arch": "qwen3", "rope": YARN},
    "qwen3-mix": {"arch": "qwen3", "formats": {"*ffn*": "Q4_1", "*": "Q5_0"}},
}


@pytest.mark.parametrize("case", CASES)
def test_tiny_logits_match_transformers(case: str, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", **CASES[case])
    rig = Rig(path, CONFIG)
    tokens = [(7919 * i + 13) % rig.vocab_size for i in range(300)]  # two prefill chunks
    want = oracle_logits(transformers_model(path), tokens)
    assert want.std() > 0.1  # logits worth comparing
    assert (rig.read_prompt(tokens, every=True) - want).abs().max() < BOUND
    rig.clear()
    assert (rig.force(tokens[:40], block=1) - want[:40]).abs().max() < BOUND
    rig.clear(9)
    assert (rig.force(tokens[9:300], block=16) - want[9:300]).abs().max() < BOUND


@pytest.mark.model
def test_smollm2_logits_match_transformers(smollm2: Path) -> None:
    rig = Rig(smollm2, CONFIG)
    tokens = [(7919 * i + 13) % 30000 for i in range(96)]
    want = oracle_logits(transformers_model(smollm2), tokens)
    assert (rig.read_prompt(tokens, every=True) - want).abs().max() < BOUND
    rig.clear(90)
    steps = torch.cat([rig.force([t]) for t in tokens[90:]])
    assert (steps - want[90:]).abs().max() < BOUND
