"""Where a model runs: `--target-device` and `--draft-device` as torch devices, refused with a remedy."""

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from pydflash.config import RuntimeConfig
from pydflash.device import DeviceInfo, available_memory_bytes, gpus, torch_name
from pydflash.errors import CapacityError, ConfigError, UnsupportedError
from pydflash.kernels import select
from pydflash.kernels.upload import trim

log = logging.getLogger(__name__)
CPU = torch.device("cpu")
T = TypeVar("T")


def target_devices(runtime: RuntimeConfig) -> list[torch.device]:
    """The devices to try, in order. Several only for auto: a GPU that kernels serve, then the CPU.

    Raises ConfigError for a device that this machine has not, UnsupportedError for one without kernels.
    """
    asked, ops = runtime.target_device, runtime.ops
    if asked == "cpu":
        return [CPU]
    if asked == "auto":
        found = [] if ops in ("cpu", "ref") else [_device(g) for g in _roomiest(gpus())]
        against = {d: _against(d) for d in found}
        served = [d for d in found if against[d] is None]
        if found and not served:
            for device, reason in against.items():
                log.warning("not on %s: %s", device, reason)
        return [*served[:1], CPU]
    kind, _, number = asked.partition(":")
    if kind not in ("cuda", "hip") or not (number or "0").isdecimal():
        raise ConfigError(f"--target-device {asked}: choose auto, cpu, cuda:N or hip:N")
    known = gpus()
    if not known:
        raise ConfigError(
            f"--target-device {asked}: torch sees no GPU here; install torch's build for it and the "
            "driver, or use --target-device cpu"
        )
    name = f"{kind}:{int(number or 0)}"
    if name not in [g.name for g in known]:
        names = ", ".join(g.name for g in known)
        raise ConfigError(f"--target-device {asked}: this machine has {names} and cpu")
    device = torch.device(torch_name(name))
    reason = _against(device)
    if ops in ("auto", "triton") and reason is not None:
        raise UnsupportedError(
            f"--target-device {asked}: {reason}; use --target-device cpu, or --ops ref for the slow "
            "kernels of the reference"
        )
    return [device]


def kernels_for(device: torch.device, ops: str) -> str:
    """The kernels to build: on a GPU, the reference only when it is asked for."""
    return "triton" if ops == "auto" and device.type != "cpu" else ops


def embeddings_on_host(runtime: RuntimeConfig, kernels: str, nbytes: int) -> bool:
    """Does a model's embedding table stay in the host's memory? `nbytes` of it, 0 if it is the head as well.

    Page-locking more than a container may use would end the process rather than fail, so auto looks first.
    """
    asked = runtime.embeddings
    if kernels != "triton" or not nbytes:
        if asked == "host":
            why = (
                "only Triton's kernels read it there" if nbytes else "it is the output head as well"
            )
            log.warning("--embeddings host: the table stays with the weights; %s", why)
        return False
    # Packed it may be half as large again, and torch rounds page-locked memory up to a power of two.
    return asked == "host" or (asked == "auto" and 3 * nbytes < available_memory_bytes())


def first_fit(devices: Sequence[torch.device], fit: Callable[[torch.device], T]) -> T:
    """What `fit` makes of the first device that has room; the last one's refusal is the answer."""
    for device in devices[:-1]:
        try:
            return fit(device)
        except CapacityError as error:
            log.warning("not on %s: %s", device, str(error))  # a record may outlive this
        # What was there already goes with the error, but for what refers to itself.
        gc.collect()
        trim(device)
    return fit(devices[-1])


def check_draft_device(runtime: RuntimeConfig, target: torch.device) -> None:
    """The drafter shares the target's embeddings and head, so it runs beside it."""
    asked = runtime.draft_device
    if asked == "auto" or torch_name(asked) in (str(target), target.type):
        return
    raise ConfigError(
        f"--draft-device {asked}: the drafter uses the target's embeddings and head and runs on its "
        f"device, {target}; leave --draft-device at auto"
    )


def _against(device: torch.device) -> str | None:
    """Why Triton's kernels cannot serve a GPU."""
    return next(c.reason for c in select.candidates(device) if c.name == "triton")


def _roomiest(found: tuple[DeviceInfo, ...]) -> list[DeviceInfo]:
    return sorted(found, key=lambda g: -g.free_bytes)


def _device(info: DeviceInfo) -> torch.device:
    return torch.device(torch_name(info.name))
