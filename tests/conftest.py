"""Fixtures for every test: fixed seeds, few threads, tiny models, and the default model when it is here."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from pydflash import catalog
from pydflash.errors import CatalogError
from tests.tiny.gguf import tiny_gguf

# Without a GPU to test on, Triton's kernels are interpreted; it looks once, when a kernel is defined.
if not os.environ.get("PYDFLASH_TEST_DEVICE", "").startswith("cuda"):
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _threads() -> None:
    # Tensors here are tiny: a second thread only waits, and badly when the machine is busy.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer F32 llama. Shared by all tests: read it, don't change it."""
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "llama.gguf", "llama")


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer tied qwen3 in Q8_0. Shared by all tests: read it, don't change it."""
    return tiny_gguf(
        tmp_path_factory.mktemp("tiny") / "qwen3.gguf", "qwen3", formats="Q8_0", tied=True
    )


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file; tests that use it are marked `model`."""
    try:
        return catalog.resolve(catalog.DEFAULT_MODEL)
    except CatalogError:
        pytest.skip(f"run `pydflash pull {catalog.DEFAULT_MODEL}`")
