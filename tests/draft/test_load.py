"""Every kind of drafter runs from its file, and drafts the same from each container."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.draft.base import DraftRow, DraftScores
from pydflash.draft.convert import convert_drafter
from pydflash.draft.dflash import DFlash
from pydflash.draft.files import open_drafter
from pydflash.draft.write import as_quant, write_gguf
from pydflash.quant.tensor import QuantTensor
from tests.draft.build import ops_of
from tests.tiny.draft import CASES
from tests.tiny.gguf import tiny_gguf


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("target") / "target.gguf")


def scores(
    path: Path,
    target: Path,
    features: torch.Tensor | None = None,
    *,
    anchor: int = 5,
    top_k: int = 3,
) -> DraftScores:
    """Candidates for each slot after `features` f32 [S, n * Et], 20 random positions by default."""
    ops = ops_of("ref")
    with open_drafter(path) as drafter, open_checkpoint(target) as lender:
        head = lender.tensor("output.weight")

        def rows(ids: torch.Tensor) -> QuantTensor:
            return as_quant("rows", head.data.clone().view(torch.float32)[ids])

        network = DFlash(
            drafter.config,
            drafter.find,
            ops,
            token_embd=ops.prepare([lender.tensor("token_embd.weight")]),
            output=ops.prepare([head]),
            max_positions=64,
            output_rows=rows,
        )
        assert network.slots == drafter.config.slots
        context = network.open_store(1, 64, "f32").open()
        assert context is not None
        if features is None:
            width = len(drafter.config.target_layers) * drafter.config.target_hidden
            features = torch.randn(20, width, generator=torch.Generator().manual_seed(1))
        context.append(0, features)
        row = DraftRow(tokens=[0] * len(features) + [anchor], context=context)
        return network.score([row], network.slots, top_k)[0]


@pytest.mark.parametrize("name", CASES)
def test_drafters_run_from_their_files(name: str, tmp_path: Path, target: Path) -> None:
    case = CASES[name]
    path = write_gguf(case.config, case.tensors(), tmp_path / "d.gguf")
    want = scores(path, target)
    assert want.tokens.shape == (case.config.slots, 3)
    assert np.isfinite(want.logp).all()
    c = case.config
    assert (want.pair is not None) is (c.selector is not None or c.markov is not None)
    convert_drafter(path, tmp_path / "zlab")
    got = scores(tmp_path / "zlab", target)
    assert np.array_equal(got.tokens, want.tokens)
    assert np.array_equal(got.logp, want.logp)


_SAME = ("swa", "dflash2", "dspark", "reduced-markov", "yarn")
_REDUCED = ("reduced-dflash2", "reduced-selector", "reduced-selector-shared")


@pytest.mark.parametrize("name", [*_SAME, *_REDUCED])
def test_llama_cpp_drafters_run_the_same(name: str, tmp_path: Path, target: Path) -> None:
    case = CASES[name]
    path = write_gguf(case.config, case.tensors(), tmp_path / "d.gguf")
    convert_drafter(path, tmp_path / "l.gguf", to="llama.cpp", target=target)
    got, want = scores(tmp_path / "l.gguf", target), scores(path, target)
    assert np.array_equal(got.tokens, want.tokens)
    assert np.array_equal(got.logp, want.logp)
