"""Compile what the kernel tests launch, for a GPU that need not be there.

    python -m tests.gpu.compile [--capability 90] [pytest's own arguments]

The interpreter takes what the compiler refuses: a name of two shapes, a type that no instruction has. Here
the tests run with a driver that compiles each launch for the named compute capability and launches nothing,
so what they then find in memory is of no interest: compilations that fail are all that counts.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

TESTS = "tests/kernels/triton"


class Driver:
    """What Triton asks of a GPU's driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Failures:
    """A pytest plugin: the compilations that failed, by test."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.tests = 0

    def pytest_collection_modifyitems(self) -> None:
        os.environ["PYDFLASH_TEST_DEVICE"] = "cpu"  # where tensors lie; conftest has looked already

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.tests += 1
        try:
            yield
        except Exception as error:
            name = type(error).__name__
            if name in ("CompilationError", "PTXASError", "OutOfResources", "RuntimeError"):
                self.found[item.nodeid] = f"{name}: {str(error).strip().splitlines()[-1]}"


def arm(capability: int) -> None:
    """Have Triton compile for it, and let launches pass."""
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver

    def no_launch(self: Any) -> Callable[..., None]:
        return lambda *args, **more: None

    driver.set_active(Driver(capability))
    CompiledKernel._init_handles = lambda self: setattr(self, "function", 1)
    CompiledKernel.run = property(no_launch)
    CompiledKernel.launch_metadata = lambda self, *args: None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, default=90, help="as in sm_90")
    asked, rest = parser.parse_known_args()
    os.environ["PYDFLASH_TEST_DEVICE"] = "cuda"  # no interpreter, then
    arm(asked.capability)
    failures = Failures()
    quiet = ["-q", "--tb=no", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    if not any(not word.startswith("-") for word in rest):
        rest = [*rest, TESTS]
    pytest.main([*quiet, *rest], plugins=[failures])
    for test, error in failures.found.items():
        print(f"{test}\n    {error}")
    print(f"{failures.tests} tests, {len(failures.found)} with a compilation that failed")
    return 1 if failures.found or not failures.tests else 0


if __name__ == "__main__":
    sys.exit(main())
