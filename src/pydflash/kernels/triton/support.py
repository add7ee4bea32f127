"""Can Triton's kernels serve a device, and if not, why."""

import importlib.util
import os

import torch

OLDEST = (7, 0)
"""Compute capability: below it there are no matrix units to speak of. 8.0 and newer is fast."""


def _launches_early() -> bool:
    """May a product start while the kernel before it ends (programmatic dependent launch)? Hopper and newer;
    PYDFLASH_EARLY_LAUNCH=0 forbids it."""
    if os.environ.get("PYDFLASH_EARLY_LAUNCH") == "0" or os.environ.get("TRITON_INTERPRET") == "1":
        return False
    if torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (9, 0)


EARLY = _launches_early()
"""Kernels between products, and these, are launched while the kernel before still runs. Each of them lets the
next one start at once (`gdc_launch_dependents`) and waits for the one before (`gdc_wait`) ahead of anything
that depends on it: that one has itself waited, so all earlier work is done by then."""
EARLY_LAUNCH: dict[str, object] = {"launch_pdl": True} if EARLY else {}

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # never called without EARLY
    gdc_launch_dependents = gdc_wait = None


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
