"""Choose the ops of a device, once, at load. The only file that imports a backend.

Every candidate states why it cannot serve; the first that can is taken, and `explain` prints the story.
"""

from dataclasses import dataclass

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import OpTable
from pydflash.kernels.ref import ops as ref_ops

_BACKENDS = ("cpu", "ref")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend and, when it cannot serve this device, the reason."""

    name: str
    reason: str | None


def build(device: torch.device, *, ops: str = "auto", threads: int = 1) -> OpTable:
    """The OpTable for `device`. `ops` is "auto" or a backend's name, which then must be able to serve."""
    if ops not in ("auto", *_BACKENDS):
        raise UnsupportedError(f"--ops {ops} is unknown; choose auto, {' or '.join(_BACKENDS)}")
    for name in _BACKENDS if ops == "auto" else (ops,):
        reason = _reason(name, device)
        if reason is None:
            return _make(name, device, threads)
    raise UnsupportedError(f"--ops {ops} cannot serve {device}: {reason}")


def candidates(device: torch.device) -> list[Candidate]:
    """Backends in order of preference, with the reason against each that cannot serve."""
    return [Candidate(name=name, reason=_reason(name, device)) for name in _BACKENDS]


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


def _reason(name: str, device: torch.device) -> str | None:
    if name == "ref":
        return None
    if device.type != "cpu":
        return "compiled CPU kernels serve the CPU only"
    from pydflash.kernels.cpu import library

    return library.unavailable()


def _make(name: str, device: torch.device, threads: int) -> OpTable:
    if name == "cpu":
        from pydflash.kernels.cpu import ops as cpu_ops

        return cpu_ops.build_ops(device, threads)
    return ref_ops.build_ops(device)
