"""device: facts about the CPU and memory, within a container's limits, without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pydflash import device

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores with two threads each, 16 GiB of which 8 are available."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(device, "_affinity", lambda: set(range(8)))
    topology = {
        f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}"
        for i in range(8)
    }
    return write(
        tmp_path,
        topology
        | {
            "proc/cpuinfo": "model name\t: Test CPU 3000\nflags\t\t: fpu avx avx2 fma f16c mmx",
            "proc/meminfo": f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {8 * GIB >> 10} kB",
            "proc/self/cgroup": "0::/box/inner",
        },
    )


def test_cpu_tells_name_and_features(machine: Path) -> None:
    assert device.cpu_name(machine) == "Test CPU 3000"
    assert device.cpu_features(machine) == ("avx", "f16c", "fma", "avx2")


def test_physical_cores_counts_siblings_once(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device.physical_cores(machine) == 4
    monkeypatch.setattr(device, "_affinity", lambda: {1, 5, 2})
    assert device.physical_cores(machine) == 2


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/box/inner/cpu.max": "250000 100000"}, 2),
        ({"sys/fs/cgroup/box/cpu.max": "100000 100000"}, 1),  # a parent's limit binds too
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),  # never less than one
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"sys/fs/cgroup/cpu.max": "9000000 100000"}, 4),
    ],
)
def test_physical_cores_honours_the_quota(machine: Path, files: dict[str, str], cores: int) -> None:
    write(machine, files)
    assert device.physical_cores(machine) == cores
    assert device.default_threads(machine) == cores


def test_physical_cores_reads_the_old_interface(machine: Path) -> None:
    files = {"proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/job"}
    files["sys/fs/cgroup/cpu/job/cpu.cfs_quota_us"] = "300000"
    files["sys/fs/cgroup/cpu/job/cpu.cfs_period_us"] = "100000"
    write(machine, files)
    assert device.physical_cores(machine) == 3
    write(machine, {"sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1"})
    assert device.physical_cores(machine) == 4


def test_memory_without_a_limit(machine: Path) -> None:
    assert device.total_memory_bytes(machine) == 16 * GIB
    assert device.available_memory_bytes(machine) == 8 * GIB


def test_memory_within_a_limit(machine: Path) -> None:
    box = "sys/fs/cgroup/box"
    write(
        machine,
        {
            f"{box}/memory.max": str(4 * GIB),
            f"{box}/memory.current": str(3 * GIB),
            f"{box}/memory.stat": f"anon 5\ninactive_file {GIB}",  # droppable, so not used
            f"{box}/inner/memory.max": "max",
            f"{box}/inner/memory.current": "5",
        },
    )
    assert device.total_memory_bytes(machine) == 4 * GIB
    assert device.available_memory_bytes(machine) == 2 * GIB


def test_memory_of_the_old_interface(machine: Path) -> None:
    group = "sys/fs/cgroup/memory"
    write(
        machine,
        {
            "proc/self/cgroup": "3:memory:/job",
            f"{group}/job/memory.limit_in_bytes": str(1 << 62 | 4095),  # how it says "none"
            f"{group}/job/memory.usage_in_bytes": "5",
            f"{group}/memory.limit_in_bytes": str(GIB),
            f"{group}/memory.usage_in_bytes": str(2 * GIB),
        },
    )
    assert device.available_memory_bytes(machine) == 0
    assert device.total_memory_bytes(machine) == GIB


def test_cpu_of_this_machine_needs_no_torch() -> None:
    code = (
        "import sys; from pydflash import device; info = device.cpu();"
        "assert 'torch' not in sys.modules;"
        "assert info.name == 'cpu' and info.description and info.cores >= 1;"
        "assert 0 < info.free_bytes <= info.total_bytes;"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_devices_lists_the_cpu_first() -> None:
    first, *others = device.devices()
    assert first.name == "cpu"
    assert first.cores <= (os.cpu_count() or 1)
    assert all(other.name.startswith("cuda:") for other in others)


def _allocator(monkeypatch: pytest.MonkeyPatch, *, works: bool = True) -> list[str]:
    """What torch's allocator is told, on a machine whose GPU maps memory or does not."""
    import torch

    told: list[str] = []

    def allocate(size: int, device: str) -> None:
        if not works:
            raise RuntimeError("CUDA driver error: operation not supported")

    for variable in device._ALLOC_CONF:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    monkeypatch.setattr(torch, "empty", allocate)
    return told


def test_gpu_memory_grows_in_place_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _allocator(monkeypatch)
    assert device.grow_in_place("cuda:0")
    assert told == ["expandable_segments:True"]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert not device.grow_in_place("cuda:0")
    assert len(told) == 1, "the user's own setting stands"


def test_a_gpu_that_cannot_map_memory_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told = _allocator(monkeypatch, works=False)
    assert not device.grow_in_place("cuda:0")
    assert told == ["expandable_segments:True", "expandable_segments:False"]
