"""describe and load: a file that is not what its metadata says is refused in one sentence."""

from pathlib import Path

import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels import select
from pydflash.models.load import describe
from tests.tiny.gguf import tiny_gguf

YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 128,
}


def load(path: Path, ops: str = "ref") -> None:
    table = select.build(torch.device("cpu"), ops=ops)
    with open_checkpoint(path) as checkpoint:
        described = describe(checkpoint)
        described.load(table, described.config.max_positions)


@pytest.mark.parametrize(
    "tensor",
    ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"],
)
def test_a_missing_tensor_is_named(tmp_path: Path, tensor: str) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", omit=(tensor,))
    with pytest.raises(CheckpointError, match=f"{tensor}.*(again)"):
        load(path)


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path, arch: str) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", arch, extra={f"{arch}.feed_forward_length": 128})
    with pytest.raises(
        CheckpointError, match=r"blk\.0\.ffn_gate\.weight is \[96, 64\].*\[128, 64\]"
    ):
        load(path)


def test_tensors_nobody_asked_for_are_refused(tmp_path: Path) -> None:
    """A qwen3 file that calls itself llama has norms llama does not know."""
    path = tiny_gguf(tmp_path / "m.gguf", "qwen3")
    data = path.read_bytes().replace(b"qwen3", b"llama")
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="attn_k_norm"):
        load(path)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"lalma"))
    with pytest.raises(UnsupportedError, match=r"'lalma'.*it runs llama, qwen3"):
        load(path)


def test_a_format_without_a_kernel_names_the_tensor(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", hidden=256, head_dim=64, formats={"*attn_q*": "IQ2_XS"})
    load(path, "ref")
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q\.weight is IQ2_XS.*--ops ref"):
        load(path, "cpu")


@pytest.mark.parametrize(
    ("keys", "error", "sentence"),
    [
        ({"llama.attention.head_count_kv": 3}, CheckpointError, "kv heads"),
        ({"llama.attention.head_count": 0}, CheckpointError, "above 0"),
        ({"llama.expert_count": 8}, UnsupportedError, "mixture-of-experts"),
        ({"llama.attention.value_length": 8}, UnsupportedError, "different length"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedError, "longrope"),
        ({"llama.rope.scaling.type": "yarn"}, CheckpointError, "original_context_length"),
        ({"llama.block_count": "two"}, CheckpointError, "block_count"),
        ({"llama.block_count": 2**31}, CheckpointError, "tensors of 2 blocks"),
        ({"llama.block_count": 0}, CheckpointError, "block_count of 0"),
        ({"llama.rope.freq_base": 1.0}, CheckpointError, "base 1.0"),
        ({"llama.rope.freq_base": -5.0}, CheckpointError, "base -5.0"),
        (YARN | {"llama.rope.scaling.yarn_beta_fast": 0.0}, CheckpointError, "above 0"),
        (YARN | {"llama.rope.scaling.attn_factor": -1.0}, CheckpointError, "above 0"),
        ({"llama.rope.dimension_count": 64}, CheckpointError, "rope"),
    ],
)
def test_metadata_that_cannot_be_right(
    tmp_path: Path, keys: dict[str, object], error: type[Exception], sentence: str
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", extra=keys)
    with pytest.raises(error, match=sentence):
        load(path)


def test_unknown_settings_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", extra={"llama.attention.wobble": 1.0})
    load(path)
    assert "llama.attention.wobble" in caplog.text
