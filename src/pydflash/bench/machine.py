"""Provenance: on what machine, from which source and which file a figure was measured."""

import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance(model: Path, threads: int) -> dict[str, Any]:
    """Everything a reader needs to judge or repeat a run. The model goes by name, size and sha256."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cpu_flags": [
            f for f in ("avx2", "fma", "f16c", "avx512f", "avx512_vnni") if f in _flags()
        ],
        "cores": usable_cores(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "pydflash": version("pydflash"),
        "commit": commit(),
        "model": {"file": model.name, "bytes": model.stat().st_size, "sha256": sha256(model)},
    }


def usable_cores() -> int:
    """Cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's own name for itself."""
    for line in _cpuinfo():
        if line.lower().startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


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


def _flags() -> set[str]:
    for line in _cpuinfo():
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
