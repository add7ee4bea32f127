"""What a whole process costs: seconds from its start to the first token, and resident memory at its peak.

Run as `python -m pydflash.bench.process MODEL`, it is the process being measured: it answers one prompt
through the public API and writes one line the moment the first text is there, one at the end.
"""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydflash.config import EngineConfig, OpsChoice
from pydflash.errors import EngineError

_TORCH = "import torch; from pydflash.bench.process import peak_bytes; print(peak_bytes())"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """Seconds and bytes. `beyond` is peak memory less `import torch` less KV, over the file's size.

    Of the KV cache, planned pages count only once they are written: those are resident.
    """

    ops: str
    first_token_s: float
    peak_bytes: int
    torch_bytes: int
    file_bytes: int
    kv_planned_bytes: int
    kv_touched_bytes: int

    @property
    def beyond(self) -> float:
        return (self.peak_bytes - self.torch_bytes - self.kv_touched_bytes) / self.file_bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"peak_less_torch_and_kv_over_file": self.beyond}


def measure_process(
    model: Path, *, threads: int, max_ctx: int, ops: str = "auto", tries: int = 2
) -> ProcessFigures:
    """Start `tries` processes one after another; the best time (the first may find a cold disk)."""
    torch_bytes = int(_run([sys.executable, "-c", _TORCH])[1])
    best: ProcessFigures | None = None
    for _ in range(tries):
        words = ["-m", __name__, str(model), str(threads), str(max_ctx), ops]
        first_s, last = _run([sys.executable, *words])
        told = json.loads(last)
        found = ProcessFigures(
            ops=told["ops"],
            first_token_s=first_s,
            peak_bytes=told["peak_bytes"],
            torch_bytes=torch_bytes,
            file_bytes=model.stat().st_size,
            kv_planned_bytes=told["kv_planned_bytes"],
            kv_touched_bytes=told["kv_touched_bytes"],
        )
        if best is None or found.first_token_s < best.first_token_s:
            best = found
    assert best is not None
    return best


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    try:
        # Not getrusage: on Linux its maximum counts the parent's memory before exec, too.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _run(command: list[str]) -> tuple[float, str]:
    """Seconds to a process's first line on stdout, and its last line."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        first_s = time.perf_counter() - began
        rest = process.stdout.read().strip()
    if process.returncode != 0:
        raise EngineError(f"the measured process ended with code {process.returncode}")
    return first_s, rest or first.strip()


def _answer(model: Path, config: EngineConfig) -> None:
    from pydflash.kernels.ops import PAGE_SIZE
    from pydflash.sampling.params import SamplingParams
    from pydflash.service.events import Finished, TextDelta
    from pydflash.service.llm import LLM

    out = sys.stdout
    with LLM(model, config=config) as llm:
        messages = [{"role": "user", "content": "Name the planets of the solar system."}]
        started, positions = False, 0
        for event in llm.stream(messages, SamplingParams(max_tokens=32, ignore_eos=True)):
            if not started and isinstance(event, TextDelta):
                started = True
                out.write(event.text.replace("\n", " ") + "\n")
                out.flush()
            if isinstance(event, Finished):
                positions = event.usage.prompt_tokens + event.usage.completion_tokens
        loaded = llm.loaded
        told = {
            "ops": loaded.ops,
            "peak_bytes": peak_bytes(),
            "kv_planned_bytes": loaded.plan.kv,
            "kv_touched_bytes": -(-positions // PAGE_SIZE) * loaded.plan.page,
        }
        out.write(json.dumps(told) + "\n")


def _main(model: str, threads: str, max_ctx: str, ops: str) -> None:
    base = EngineConfig()
    runtime = replace(base.runtime, threads=int(threads), ops=cast("OpsChoice", ops))
    state = replace(base.state, max_ctx=int(max_ctx))
    spec = replace(base.spec, no_speculation=True)
    _answer(Path(model), replace(base, runtime=runtime, state=state, spec=spec))


if __name__ == "__main__":
    _main(*sys.argv[1:])
