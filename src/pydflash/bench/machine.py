"""Provenance: on what machine, from which source and which file a figure was measured."""

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from pydflash.device import cpu_features, cpu_name, physical_cores


def provenance(model: Path, threads: int) -> dict[str, Any]:
    """Everything a reader needs to judge or repeat a run. The model goes by name, size and sha256."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cpu_features": list(cpu_features()),
        "cores": physical_cores(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "pydflash": version_of("pydflash"),
        "commit": commit(),
        "model": {"file": model.name, "bytes": model.stat().st_size, "sha256": sha256(model)},
    }


def device_provenance(model: Path, device: torch.device) -> dict[str, Any]:
    """The same for a run on a device; a model of many gigabytes goes by name and size alone."""
    told: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": cpu_name(),
        "cpu": cpu_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "pydflash": version_of("pydflash"),
        "commit": commit(),
        "model": {"file": model.name, "bytes": model.stat().st_size},
    }
    if device.type != "cuda":
        return told
    properties = torch.cuda.get_device_properties(device)
    return told | {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "device_bytes": properties.total_memory,
        "driver": driver(),
        "cuda": torch.version.cuda or torch.version.hip,
        "triton": version_of("triton"),
    }


def driver() -> str | None:
    """Version of NVIDIA's driver, where its tool says."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip().splitlines()[0] if told.stdout.strip() else None


def version_of(package: str) -> str | None:
    """An installed package's version; None where it is not installed (run from its source, say)."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """Commit of the source tree, with "+" when files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git(where: Path, *words: str) -> str:
    run = subprocess.run(
        ["git", "-C", str(where), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return run.stdout.strip()
