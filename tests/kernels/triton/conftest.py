"""Where Triton's kernels are tested: on the GPU that PYDFLASH_TEST_DEVICE names, else by the interpreter.

tests/conftest.py switches the interpreter on before anything imports Triton.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from tests.interpreter import mend

pytest.importorskip("triton", reason="pip install triton")
mend()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device(os.environ.get("PYDFLASH_TEST_DEVICE", "cpu"))


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.empty holds NaN (or the largest integer): an element that no kernel wrote shows."""
    made = torch.utils.deterministic.fill_uninitialized_memory
    before = torch.are_deterministic_algorithms_enabled()
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
    torch.utils.deterministic.fill_uninitialized_memory = made
