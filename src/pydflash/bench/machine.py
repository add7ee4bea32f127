"""Provenance: on what machine, from which source and which file a figure was measured."""

import hashlib
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
        "pydflash": version("pydflash"),
        "commit": commit(),
        "model": {"file": model.name, "bytes": model.stat().st_size, "sha256": sha256(model)},
    }


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
