"""Drafters through every container: what goes in comes out, or is refused by name."""

from pathlib import Path

import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.meta import Meta
from pydflash.draft.files import open_drafter
from pydflash.draft.for_llama_cpp import with_identity_convs
from pydflash.draft.read_gguf import SEEDS
from pydflash.draft.write import write_gguf, write_safetensors
from pydflash.errors import PydflashError
from pydflash.kernels.ref.quant import dequantize
from tests.tiny.draft import CASES, DraftCase
from tests.tiny.gguf import tiny_gguf

Tensor = torch.Tensor

# What llama.cpp's dialect has no word for, and the word its refusal must contain.
REFUSED = {
    "domino": "domino",
    "domino-full": "domino",
    "gates": "attn_gate",
    "channel-gates": "aux_hidden_norm|attn_gate",
    "mask": "mask_embedding",
    "bias": "bias",
    "wide-target": "hidden size",
    "confidence": "confidence",
    "reduced-shared": "without a head",
    "reduced-selector-shared": "without a head",
}
CONTAINERS = ("safetensors", "seeds", "llama.cpp")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Meta:
    path = tiny_gguf(tmp_path_factory.mktemp("target") / "target.gguf")
    return open_checkpoint(path).meta


def store(case: DraftCase, container: str, at: Path, target: Meta) -> Path:
    if container == "safetensors":
        return write_safetensors(case.config, case.tensors(), at)
    dialect = "dflash" if container == "llama.cpp" else "dflash-draft"
    return write_gguf(case.config, case.tensors(), at, dialect=dialect, tokenizer=target)


def numbers(path: Path) -> dict[str, Tensor]:
    with open_drafter(path) as drafter:
        return {name: dequantize(tensor) for name, tensor in drafter.tensors().items()}


def same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert got[name].shape == tensor.shape, name
        assert torch.equal(got[name], tensor.float()), name


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", CASES)
def test_open_drafter_returns_what_was_written(
    name: str, container: str, tmp_path: Path, target: Meta
) -> None:
    case = CASES[name]
    if container == "llama.cpp" and name in REFUSED:
        with pytest.raises(PydflashError, match=REFUSED[name]):
            store(case, container, tmp_path / "draft", target)
        assert not any(tmp_path.iterdir())
        return
    path = store(case, container, tmp_path / "draft", target)
    config, tensors = case.config, case.tensors()
    if container == "llama.cpp":
        config, tensors = with_identity_convs(config, tensors)
    with open_drafter(path) as drafter:
        assert drafter.config == config
        assert drafter.container == container
        assert drafter.notes == ()
    same(numbers(path), tensors)


@pytest.mark.parametrize("arch", SEEDS)
def test_write_gguf_keeps_the_dialect(arch: str, tmp_path: Path) -> None:
    case = CASES["swa"]
    path = write_gguf(case.config, case.tensors(), tmp_path / "d.gguf", dialect=arch)
    with open_drafter(path) as drafter:
        assert drafter.architecture == arch
        assert drafter.config == case.config
