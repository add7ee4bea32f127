"""Which kernels the suites run on: the CPU's, or Triton's on the GPU that PYDFLASH_TEST_DEVICE names."""

import os

import torch

from pydflash.kernels import select
from pydflash.kernels.ops import OpTable

DEVICE = torch.device(os.environ.get("PYDFLASH_TEST_DEVICE", "cpu"))
ON_GPU = DEVICE.type == "cuda"
FAST = "triton" if ON_GPU else "cpu"
BACKENDS = ("triton",) if ON_GPU else ("ref", "cpu")
CLOSE = {"rtol": 2e-2, "atol": 2e-2} if ON_GPU else {"rtol": 1e-4, "atol": 1e-4}
"""How near kernels come to the reference on tiny models: a GPU's multiply in f16."""


def large(device: torch.device) -> bool:
    """Whether tests take real sizes: on a GPU, unless PYDFLASH_TEST_SMALL is set (a sanitizer is slow)."""
    return device.type == "cuda" and not os.environ.get("PYDFLASH_TEST_SMALL")


def table(ops: str, threads: int = 1) -> OpTable:
    """Kernels by name: Triton's on the device under test (on a CPU interpreted), others on the CPU."""
    if ops != "triton":
        return select.build(torch.device("cpu"), ops=ops, threads=threads)
    if ON_GPU:
        return select.build(DEVICE, ops=ops)
    from pydflash.kernels.triton import ops as interpreted

    return interpreted.build_ops(DEVICE)
