"""Can Triton's kernels serve a device, and if not, why."""

import importlib.util
import os

import torch

OLDEST = (7, 0)
"""Compute capability: below it there are no matrix units to speak of. 8.0 and newer is fast."""


def interpreting() -> bool:
    """Triton's interpreter runs the kernels on CPU tensors: for tests of small shapes, so nothing
    selects it; tests build the ops themselves."""
    return os.environ.get("TRITON_INTERPRET") == "1"


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
