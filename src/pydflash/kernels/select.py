"""Choose the ops of a device, once, at load. The only file that imports a backend.

Every candidate states why it cannot serve; the first that can is taken, and `explain` prints the story.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.ops import Missing, OpTable
from pydflash.kernels.ref import ops as ref_ops

_BACKENDS = ("triton", "cpu", "ref")
_ELSEWHERE = {"cpu": "triton", "cuda": "cpu"}  # the backend that is for other devices than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend and, when it cannot serve this device, the reason."""

    name: str
    reason: str | None


def build(
    device: torch.device, *, ops: str = "auto", threads: int = 1, host_tables: bool = False
) -> OpTable:
    """The OpTable for `device`. `ops` is "auto" or a backend's name, which then must be able to serve.

    `host_tables`: a GPU's embedding tables are to stay in the host's memory, where its kernels can.
    """
    if ops not in ("auto", *_BACKENDS):
        raise UnsupportedError(f"--ops {ops} is unknown; choose auto, {' or '.join(_BACKENDS)}")
    for name in _BACKENDS if ops == "auto" else (ops,):
        reason = _reason(name, device)
        if reason is None:
            return _make(name, device, threads, host_tables)
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


def obstacles(
    device: torch.device, formats: Iterable[str], ops: Iterable[str]
) -> dict[str, list[str]]:
    """For each backend of such devices, what keeps it from running a model with weights of these formats
    that needs these ops (names of OpTable fields). Nothing: it can."""
    names = [name for name in _BACKENDS if name != _ELSEWHERE.get(device.type)]
    return {name: _obstacles(name, device, formats, ops) for name in names}


def _obstacles(
    name: str, device: torch.device, formats: Iterable[str], ops: Iterable[str]
) -> list[str]:
    reason = _reason(name, device)
    if reason is not None:
        return [reason]
    table = _make(name, device, 1)
    found = []
    if missing := sorted(set(formats) - table.formats):
        found.append(f"no kernel for {', '.join(missing)}")
    if lacking := sorted(op for op in ops if isinstance(getattr(table, op), Missing)):
        found.append(f"lacks {', '.join(lacking)}")
    return found


def _reason(name: str, device: torch.device) -> str | None:
    if name == "ref":
        return None
    if name == "triton":
        from pydflash.kernels.triton import support

        return support.unavailable(device)
    if device.type != "cpu":
        return "these kernels are for the CPU"
    from pydflash.kernels.cpu import library

    return library.unavailable()


def _make(name: str, device: torch.device, threads: int, host_tables: bool = False) -> OpTable:
    if name == "cpu":
        from pydflash.kernels.cpu import ops as cpu_ops

        return cpu_ops.build_ops(device, threads)
    if name == "triton":
        from pydflash.kernels.triton import ops as triton_ops

        return triton_ops.build_ops(device, host_tables)
    return ref_ops.build_ops(device)
