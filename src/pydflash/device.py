"""What this machine offers: processors, memory, instruction sets, GPUs.

Facts about the CPU come from the operating system alone; torch is imported only to ask for GPUs.
Limits of a container (affinity, CPU quota, memory) are honoured: what is reported is what this
process may use.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

# The instruction sets that kernels choose by, as /proc/cpuinfo and sysctl spell them.
ISA_FEATURES = (
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)
_ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device. `cores` are physical ones this process may use (0 on a GPU); sizes in bytes."""

    name: str  # as --target-device takes it
    description: str
    total_bytes: int
    free_bytes: int
    cores: int = 0
    features: tuple[str, ...] = ()
    capability: str = ""  # compute capability of a GPU


def devices() -> tuple[DeviceInfo, ...]:
    """The CPU, then every GPU torch can use."""
    return (cpu(), *gpus())


def cpu() -> DeviceInfo:
    """The CPU and main memory, without torch."""
    return DeviceInfo(
        name="cpu",
        description=cpu_name(),
        total_bytes=total_memory_bytes(),
        free_bytes=available_memory_bytes(),
        cores=physical_cores(),
        features=cpu_features(),
    )


def gpus() -> tuple[DeviceInfo, ...]:
    """Every GPU torch can use, `hip:N` on AMD's (imports torch)."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = []
    kind = "cuda" if torch.version.hip is None else "hip"
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            DeviceInfo(
                name=f"{kind}:{index}",
                description=properties.name,
                total_bytes=total,
                free_bytes=free,
                capability=f"{properties.major}.{properties.minor}",
            )
        )
    return tuple(found)


def torch_name(name: str) -> str:
    """A device's name as torch spells it, which calls AMD's GPUs cuda as well."""
    return name.replace("hip", "cuda", 1) if name.startswith("hip") else name


def free_bytes(name: str) -> int:
    """Memory free on a device; of a GPU, what torch keeps in reserve counts as free."""
    if name == "cpu":
        return available_memory_bytes()
    import torch

    kept = torch.cuda.memory_reserved(name) - torch.cuda.memory_allocated(name)
    return torch.cuda.mem_get_info(name)[0] + kept


_ALLOC_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def grow_in_place(name: str) -> bool:
    """Have torch take a GPU's memory in pieces that grow where they are, from now on; whether it does.

    Else every large tensor's block is rounded up by a megabyte or two, and a model has hundreds of them. The
    user's own PYTORCH_ALLOC_CONF stands, and nothing changes but with NVIDIA's driver on Linux.
    """
    import torch

    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:  # before torch 2.8
        change = getattr(torch.cuda.memory, "_set_allocator_settings", None)
    asked = any(os.environ.get(variable) for variable in _ALLOC_CONF)
    if asked or change is None or sys.platform != "linux" or torch.version.hip is not None:
        return False
    change("expandable_segments:True")
    try:
        torch.empty(1, device=name)
    except RuntimeError:  # some virtual machines' GPUs cannot map memory so
        change("expandable_segments:False")
        return False
    return True


def ran_out(error: BaseException) -> bool:
    """Is this what memory that runs out looks like? Torch has a type for it; the driver, when it loads a
    kernel or locks pages, and libraries only say so."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    said = str(error).lower()
    return any(w in said for w in ("out of memory", "alloc_failed", "can't allocate memory"))


class Scarce:
    """`with Scarce() as memory: work()`, then `if memory.ran_out:` something smaller. Other errors pass.

    Nothing of the work is alive then: an `except` clause would keep its frames, and what they hold.
    """

    def __init__(self) -> None:
        self.ran_out = False
        self.said = ""  # by the error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, (RuntimeError, MemoryError)) and ran_out(error):
            self.ran_out, self.said = True, str(error)
        return self.ran_out


def default_threads(root: Path = _ROOT) -> int:
    """One thread per physical core this process may use."""
    return physical_cores(root)


def physical_cores(root: Path = _ROOT) -> int:
    """Physical cores within this process's affinity and the container's CPU quota; at least 1."""
    allowed = _affinity()
    siblings = set()
    for index in allowed:
        text = _read(root / f"sys/devices/system/cpu/cpu{index}/topology/thread_siblings_list")
        siblings.add(text or str(index))
    cores = len(siblings)
    if sys.platform == "darwin" and (count := _sysctl("hw.physicalcpu")).isdigit():
        cores = int(count)
    quota = _cpu_quota(root)
    # A quota of 1.5 CPUs feeds one full thread and half of another: rounding up would stall both.
    return max(1, min(cores, int(quota)) if quota is not None else cores)


def cpu_name(root: Path = _ROOT) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    if match:
        return match[1].strip()
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def cpu_features(root: Path = _ROOT) -> tuple[str, ...]:
    """The instruction sets of ISA_FEATURES that this CPU has; empty where the system does not tell."""
    match = re.search(
        r"^(?:flags|Features)\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE
    )
    words = set(match[1].split()) if match else set()
    if sys.platform == "darwin":
        words |= {"asimd", "asimddp"} if platform.machine() == "arm64" else set()
        words |= set(_sysctl("machdep.cpu.features").lower().replace("avx1.0", "avx").split())
        words |= set(_sysctl("machdep.cpu.leaf7_features").lower().split())
    return tuple(feature for feature in ISA_FEATURES if feature in words)


def total_memory_bytes(root: Path = _ROOT) -> int:
    """Main memory this process may ever use: the machine's, or the container's limit if lower."""
    total = _meminfo(root).get("MemTotal") or _system_memory()[0]
    limit = _memory_cgroup(root)
    return min(total, limit[0]) if limit else total


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Main memory that can be taken now without swapping, within the container's limit."""
    free = _meminfo(root).get("MemAvailable") or _system_memory()[1]
    limit = _memory_cgroup(root)
    return min(free, max(0, limit[0] - limit[1])) if limit else free


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time the container may use; None without a limit."""
    quotas = []
    for directory in _cgroups(root, "cpu"):
        words = _read(directory / "cpu.max").split()
        if not words:  # version 1 of the interface
            words = [_read(directory / f"cpu.cfs_{part}_us") for part in ("quota", "period")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _memory_cgroup(root: Path) -> tuple[int, int] | None:
    """The tightest (limit, used) in bytes; file pages the kernel can drop do not count as used."""
    found = []
    for directory in _cgroups(root, "memory"):
        for limit_name, used_name, inactive in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _read(directory / limit_name), _read(directory / used_name)
            # Version 1 says "no limit" with a number close to 2**63.
            if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
                match = re.search(rf"^{inactive} (\d+)$", _read(directory / "memory.stat"), re.M)
                found.append((int(limit), int(used) - (int(match[1]) if match else 0)))
    return min(found, key=lambda pair: pair[0] - pair[1], default=None)


def _cgroups(root: Path, controller: str) -> list[Path]:
    """This process's control groups of both interface versions, each with its parents."""
    found: list[Path] = []
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = base / controller if controllers else base
        place = top / path.lstrip("/")
        # Inside a container the path may name a group that is mounted as the top itself.
        while place != top and top in place.parents:
            found.append(place)
            place = place.parent
        found.append(top)
    return found


def _meminfo(root: Path) -> dict[str, int]:
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in lines}


@cache
def _system_memory() -> tuple[int, int]:
    """(total, free) where there is no /proc."""
    if sys.platform == "win32":
        return _windows_memory()
    total = _sysctl("hw.memsize")
    if total.isdigit():
        # macOS keeps no single figure for "available"; half is a cautious reading.
        return int(total), int(total) // 2
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pages, pages


def _windows_memory() -> tuple[int, int]:
    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
        )

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return int(status.total), int(status.free)


@cache
def _sysctl(name: str) -> str:
    if sys.platform != "darwin":
        return ""
    try:
        result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
