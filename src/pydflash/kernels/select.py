"""Choose the ops of a device, once, at load. The only file that imports a backend.

Every candidate states why it cannot serve; the first that can is taken, and `explain` prints the story.
"""

from dataclasses import dataclass

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import OpTable
from pydflash.kernels.ref import ops as ref_ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend and, when it cannot serve this device, the reason."""

    name: str
    reason: str | None


def build(device: torch.device, *, ops: str = "auto", threads: int = 1) -> OpTable:
    """The OpTable for `device`. `ops` is "auto" or a backend's name, which then must be able to serve."""
    for candidate in candidates(device):
        if ops not in ("auto", candidate.name):
            continue
        if candidate.reason is None:
            return _make(candidate.name, device, threads)
        if ops == candidate.name:
            raise UnsupportedError(f"--ops {ops} cannot serve {device}: {candidate.reason}")
    raise UnsupportedError(f"--ops {ops} is unknown; choose auto, cpu or ref")


def candidates(device: torch.device) -> list[Candidate]:
    """Backends in order of preference, with the reason against each that cannot serve."""
    return [
        Candidate(name="cpu", reason=_cpu_reason(device)),
        Candidate(name="ref", reason=None),
    ]


def explain(device: torch.device) -> list[str]:
    """One line for each backend: chosen, available, or why not."""
    lines = []
    chosen = False
    for candidate in candidates(device):
        if candidate.reason is not None:
            state = f"no: {candidate.reason}"
        else:
            state = "available" if chosen else "chosen"
            chosen = True
        lines.append(f"{candidate.name}: {state}")
    return lines


def supported_formats(device: torch.device | str) -> frozenset[str]:
    """Weight formats the chosen backend multiplies by."""
    return build(torch.device(device)).formats


def _cpu_reason(device: torch.device) -> str | None:
    if device.type != "cpu":
        return "compiled CPU kernels serve the CPU only"
    from pydflash.kernels.cpu import library

    return library.unavailable()


def _make(name: str, device: torch.device, threads: int) -> OpTable:
    if name == "cpu":
        from pydflash.kernels.cpu import ops as cpu_ops

        return cpu_ops.build_ops(device, threads)
    return ref_ops.build_ops(device)
