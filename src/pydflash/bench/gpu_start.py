"""Part of the GPU bench: seconds from the start of a process to its first token, twice."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydflash.config import EngineConfig
from pydflash.errors import EngineError

_LIMIT_S = 240


def words(path: Path, config: EngineConfig) -> list[str]:
    """The command whose start is measured: `pydflash run` with the bench's main options."""
    state, spec, runtime = config.state, config.spec, config.runtime
    out = [sys.executable, "-m", "pydflash", "run", str(path), "hi", "--max-tokens", "1"]
    out += ["--target-device", runtime.target_device, "--ops", runtime.ops]
    out += ["--cache-type-k", state.cache_type_k, "--cache-type-v", state.cache_type_v]
    out += ["--max-ctx", str(state.max_ctx)] if state.max_ctx else []
    out += ["--threads", str(runtime.threads)] if runtime.threads else []
    return [*out, *(["--no-speculation"] if spec.no_speculation else ["--draft", spec.draft])]


def first_token_s(command: Sequence[str]) -> tuple[float, float]:
    """Seconds to the first byte on stdout, and to the end; the end twice if the token has no text."""
    source = str(Path(__file__).parents[2])
    paths = os.environ.get("PYTHONPATH")
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{paths}" if paths else source}
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment) as process,
    ):
        assert process.stdout is not None
        guard = threading.Timer(_LIMIT_S, process.kill)
        guard.start()
        byte = process.stdout.read(1)
        first = time.perf_counter() - began
        process.stdout.read()
        process.wait()
        guard.cancel()
        said.seek(0)
        last = said.read().decode(errors="replace").strip().splitlines()[-1:]
    if process.returncode:
        raise EngineError(f"the measured process ended with {process.returncode}: {''.join(last)}")
    whole = time.perf_counter() - began
    return first if byte else whole, whole


def measure_start(command: Sequence[str], starts: int = 2) -> dict[str, Any]:
    """The last start counts: the first may compile, or find a cold disk."""
    found = [first_token_s(command) for _ in range(starts)]
    return {
        "first_token_s": [first for first, _ in found],
        "process_s": [whole for _, whole in found],
        "counts_s": found[-1][0],
    }
