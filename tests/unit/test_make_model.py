"""bench make-model: any size, readable by us, with the true shapes built in."""

import json
from math import prod
from pathlib import Path

import pytest

from pydflash.bench.make_model import BUILT_IN, Dimensions, make_model, tensor_shapes
from pydflash.checkpoint.files import open_checkpoint
from pydflash.errors import ConfigError
from tests.driver import Driver

SMALL = {
    "embedding_length": 256,
    "block_count": 2,
    "full_attention_interval": 2,
    "context_length": 512,
    "feed_forward_length": 256,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 64,
    "ssm.inner_size": 256,
    "ssm.state_size": 64,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 256,
    "expert_shared_feed_forward_length": 256,
}


def test_the_true_sizes() -> None:
    """Parameters of the language models, against their names (0.8B counts the tied embedding once)."""
    wanted = {"qwen3.5-0.8b": 0.75e9, "qwen3.5-27b": 27e9, "qwen3.5-35b-a3b": 35e9}
    assert {p.stem for p in BUILT_IN.glob("*.json")} == set(wanted)
    for name, about in wanted.items():
        count = sum(prod(s) for s in tensor_shapes(Dimensions.read(name)).values())
        assert abs(count - about) < 0.03 * about, (name, count)


@pytest.mark.parametrize("name", ["qwen3.5-0.8b", "qwen3.5-35b-a3b"])
def test_a_smaller_sibling_runs(name: str, tmp_path: Path) -> None:
    true = json.loads((BUILT_IN / f"{name}.json").read_text())
    small = {key: value for key, value in SMALL.items() if key in true["metadata"]}
    small["attention.value_length"] = 64
    true["metadata"] |= small | {
        "rope.dimension_count": 32,
        "rope.dimension_sections": [6, 5, 5, 0],
    }
    true["vocabulary"] = 300
    path = tmp_path / "d.json"
    path.write_text(json.dumps(true))
    made = make_model(Dimensions.read(str(path)), tmp_path / "m.gguf", type="Q4_K_M")
    with open_checkpoint(made) as checkpoint:
        formats = {t.name: t.format.name for t in checkpoint.tensors.values()}
    assert formats["blk.0.attn_qkv.weight"] == "Q5_K"
    assert formats["blk.0.attn_gate.weight"] == "Q4_K"
    assert formats["blk.0.ssm_conv1d.weight"] == "F32"
    d = Driver(made, ops="ref")
    logits = d.prefill(d.state(), list(range(5, 45)))
    assert logits.isfinite().all()
    assert logits.std() > 0.05
    again = make_model(Dimensions.read(str(path)), tmp_path / "n.gguf", type="Q4_K_M")
    assert made.read_bytes() == again.read_bytes(), "a seed makes one file"


def test_unknown_dimensions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"built in are qwen3\.5-0\.8b"):
        Dimensions.read("qwen9")
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(ConfigError, match="does not describe dimensions"):
        Dimensions.read(str(bad))
    lacking = Dimensions(architecture="qwen35", name="x", vocabulary=300, tied=True, metadata={})
    with pytest.raises(ConfigError, match="lack 'embedding_length'"):
        tensor_shapes(lacking)
