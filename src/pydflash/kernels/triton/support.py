"""What a device is to Triton's kernels: can they serve it, if not why, and what it has for them."""

import functools
import importlib.util
import os

import torch

OLDEST = (7, 0)
"""Compute capability: below it there are no matrix units to speak of. 8.0 and newer is fast."""


def interpreting() -> bool:
    """Triton's interpreter runs the kernels on CPU tensors: for tests of small shapes, so nothing
    selects it; tests build the ops themselves."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def uses_assembly() -> bool:
    """Neither Triton's interpreter nor AMD's compiler knows NVIDIA's instructions."""
    return not interpreting() and torch.version.hip is None


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Compute capability 9: later ones have other matrix units again."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] == 9


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have. Triton's interpreter sets no bound."""
    if device.type != "cuda":
        return 1 << 30
    from triton.runtime import driver

    index = torch.cuda.current_device() if device.index is None else device.index
    found = driver.active.utils.get_device_properties(index)
    return int(found["max_shared_mem"])


def unavailable(device: torch.device) -> str | None:
    """The reason, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; it comes with torch's builds for GPUs"
    if device.type != "cuda" or not torch.cuda.is_available():
        return "these kernels are for GPUs" if device.type == "cpu" else f"torch sees no {device}"
    if interpreting():
        return "TRITON_INTERPRET=1 has Triton run on the CPU"
    found = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and found < OLDEST:
        return (
            f"compute capability {found[0]}.{found[1]}; at least {OLDEST[0]}.{OLDEST[1]} is needed"
        )
    return None
