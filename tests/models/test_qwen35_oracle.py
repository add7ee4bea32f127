"""Logits of the Qwen3.5 family on the reference path against `transformers`, F32, weights moved by us."""

from pathlib import Path

import pytest

from tests.driver import Driver
from tests.oracles.logits_transformers import oracle_logits
from tests.oracles.qwen35_transformers import random_model, write_gguf

BOUND = 1e-3
TOKENS = [(7919 * i + 13) % 320 for i in range(300)]


@pytest.mark.parametrize("experts", [False, True], ids=["qwen35", "qwen35moe"])
def test_tiny_logits_match_transformers(experts: bool, tmp_path: Path) -> None:
    model = random_model(experts=experts)
    path = write_gguf(model, tmp_path / "tiny.gguf")
    want = oracle_logits(model, TOKENS)
    assert want.std() > 0.1  # logits worth comparing
    d = Driver(path, ops="ref")
    assert (d.prefill_all(d.state(), TOKENS) - want).abs().max() < BOUND
    assert (d.decode(d.state(), TOKENS) - want).abs().max() < BOUND
