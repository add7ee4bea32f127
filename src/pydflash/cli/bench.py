"""`pydflash bench`: what a step costs, and how fast prompts are read and answers written.

The verb `suite` has a file of its own, and so have those of a device (`bench_gpu.py`) and those that ask a
server (`served.py`).
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from pydflash import catalog
from pydflash.config import (
    EngineConfig,
    KvFormat,
    OpsChoice,
    RuntimeConfig,
    SpecConfig,
    StateConfig,
)
from pydflash.errors import ConfigError

if TYPE_CHECKING:
    from pydflash.bench.harness import Rig
    from pydflash.bench.peer import PeerProcess
    from pydflash.bench.report import Samples
    from pydflash.bench.speed import SpeedFigure
    from pydflash.bench.step import StepFigure

app = App(name="bench", help="Measure steps, speed and drafts.", help_format="plaintext")
app.command(
    "pydflash.cli.suite:suite",
    name="suite",
    help="Answer the same prompts plainly and with drafts, in turn.",
)
app.command(
    "pydflash.cli.bench_gpu:gpu",
    name="gpu",
    help="Measure every figure of a device on one loaded model.",
)
app.command(
    "pydflash.cli.bench_gpu:make_drafter",
    name="make-drafter",
    help="Write a drafter of the published shape with random weights.",
)
app.command(
    "pydflash.cli.served:load",
    name="load",
    help="Send many clients to a server at once, some of them rude.",
)
app.command(
    "pydflash.cli.served:overhead",
    name="overhead",
    help="Time what HTTP costs one client.",
)
app.command(
    "pydflash.cli.served:turns",
    name="turns",
    help="Time how much sooner a second turn begins.",
)
app.command(
    "pydflash.cli.served:lucebench",
    name="lucebench",
    help="Run areas of lucebench against a server.",
)

Model = Annotated[
    str, Parameter(name="--model", help="catalogue name, path, or hf:owner/repo/file")
]
Vs = Annotated[
    Literal["llama.cpp"] | None,
    Parameter(help="run this peer on the same file, too", show_default=False),
]
PeerPython = Annotated[
    str | None, Parameter(help="Python that has llama_cpp; this one by default", show_default=False)
]
Json = Annotated[
    Path | None, Parameter(name="--json", help="save the figures here", show_default=False)
]
Threads = Annotated[int, Parameter(help="CPU threads; 0: one per physical core")]
Rounds = Annotated[int, Parameter(help="turns of each side")]
Depth = Annotated[int, Parameter(help="positions stored beforehand")]
Cache = Annotated[KvFormat, Parameter(help="format of attention keys and values")]
Ops = Annotated[OpsChoice, Parameter(help="kernels")]


@app.command
def step(
    *,
    model: Model = catalog.DEFAULT_MODEL,
    rows: Annotated[str, Parameter(help="row counts, with commas")] = "1,2,4,8,16,32,64",
    depth: Depth = 128,
    rounds: Rounds = 7,
    threads: Threads = 0,
    cache_type: Cache = "f16",
    ops: Ops = "auto",
    vs: Vs = None,
    peer_python: PeerPython = None,
    json: Json = None,
) -> None:
    """Time a step of k exact rows, beside the least its bytes and operations could take here.

    A chain is the step alone; a tree branches, and the commit of an accepted path is in its time.
    """
    from pydflash.bench.report import save
    from pydflash.bench.step import measure_steps

    counts = _counts(rows)
    require_positive(depth=depth, rounds=rounds)
    path = catalog.resolve(model)
    rig = make_rig(path, depth + max(counts), threads, cache_type, ops)
    with _peer(vs, peer_python, path, rig, cache_type) as peer:
        figures, ceilings = measure_steps(rig, peer, depth=depth, rows=counts, rounds=rounds)
        head = _head(path, rig, peer, cache_type)
    _show_steps(figures, f"k-row step after {depth} positions, {rig.ops.name} kernels")
    if json is not None:
        body = head | {"depth": depth, "ceilings": asdict(ceilings)}
        save(json, "step", body | {"steps": [f.to_json() for f in figures]})


@app.command
def speed(
    *,
    model: Model = catalog.DEFAULT_MODEL,
    prompt: Annotated[int, Parameter(help="tokens to read")] = 512,
    answer: Annotated[int, Parameter(help="tokens to write")] = 64,
    depth: Depth = 128,
    rounds: Rounds = 5,
    threads: Threads = 0,
    cache_type: Cache = "f16",
    ops: Ops = "auto",
    process: Annotated[
        bool, Parameter(help="measure the start and memory of a whole process, too")
    ] = True,
    vs: Vs = None,
    peer_python: PeerPython = None,
    json: Json = None,
) -> None:
    """Time reading a prompt and writing an answer; and a process from its start to the first token."""
    from pydflash.bench.process import measure_process
    from pydflash.bench.report import save
    from pydflash.bench.speed import measure_speed

    require_positive(prompt=prompt, answer=answer, depth=depth, rounds=rounds)
    path = catalog.resolve(model)
    ctx = max(prompt + 1, depth + answer + 1)
    rig = make_rig(path, ctx, threads, cache_type, ops)
    with _peer(vs, peer_python, path, rig, cache_type) as peer:
        figures = measure_speed(rig, peer, prompt=prompt, answer=answer, depth=depth, rounds=rounds)
        head = _head(path, rig, peer, cache_type)
    _show_speed(figures, f"speed, {rig.ops.name} kernels")
    body: dict[str, Any] = head | {"depth": depth, "speed": [f.to_json() for f in figures]}
    if process:
        whole = measure_process(path, threads=rig.threads, max_ctx=rig.ctx, ops=ops)
        body["process"] = whole.to_json()
        print(
            f"process ({whole.ops} kernels): first token after {whole.first_token_s:.2f} s; peak "
            f"{_mib(whole.peak_bytes)}, of it import torch {_mib(whole.torch_bytes)}, "
            f"KV {_mib(whole.kv_touched_bytes)} (of {_mib(whole.kv_planned_bytes)} planned); "
            f"the rest is {whole.beyond:.2f} x the file"
        )
    if json is not None:
        save(json, "speed", body)


@app.command(name="make-model")
def make_model(
    dimensions: Annotated[
        str, Parameter(help="a JSON file, or qwen3.5-0.8b, qwen3.5-27b, qwen3.5-35b-a3b")
    ],
    out: Annotated[Path, Parameter(help="the GGUF file to write")],
    /,
    *,
    type: Annotated[str, Parameter(help="formats, as for quantize")] = "Q4_K_M",
    seed: int = 0,
    force: Annotated[bool, Parameter(help="replace an existing file")] = False,
) -> None:
    """Write a model of these dimensions with random weights, to measure sizes without the real ones."""
    from pydflash.bench.make_model import Dimensions
    from pydflash.bench.make_model import make_model as make

    if out.exists() and not force:
        raise ConfigError(f"{out} exists; remove it, or replace it with --force")
    path = make(Dimensions.read(dimensions), out, type=type, seed=seed)
    print(f"{path}: {_mib(path.stat().st_size)}")


def make_rig(path: Path, ctx: int, threads: int, cache_type: KvFormat, ops: OpsChoice) -> "Rig":
    """A rig that holds `ctx` positions and does not draft."""
    from pydflash.bench.harness import Rig

    ctx = -(-ctx // 32) * 32
    config = replace(
        EngineConfig(),
        runtime=RuntimeConfig(threads=threads, ops=ops),
        state=StateConfig(cache_type_k=cache_type, cache_type_v=cache_type, max_ctx=ctx),
        spec=SpecConfig(no_speculation=True),  # what drafts are worth is for `bench suite`
    )
    return Rig(path, config)


def _peer(vs: str | None, python: str | None, path: Path, rig: "Rig", cache_type: KvFormat) -> Any:
    from pydflash.bench.peer import beside

    device, types = rig.ops.device, (cache_type, cache_type)
    return beside(
        vs, python, path, threads=rig.threads, ctx=rig.ctx, device=device, cache_types=types
    )


def _head(path: Path, rig: "Rig", peer: "PeerProcess | None", cache_type: str) -> dict[str, Any]:
    from pydflash.bench.machine import provenance

    head = provenance(path, rig.threads) | {"ops": rig.ops.name, "cache_type": cache_type}
    return head | ({"peer": peer.version} if peer is not None else {})


def _show_steps(figures: list["StepFigure"], title: str) -> None:
    columns = ["rows", "ms best/med", "commit", "floor", "x floor", "bound by"]
    columns += ["llama.cpp ms", "ratio"] if figures[0].theirs is not None else []
    lines = []
    for f in figures:
        line = [f"{f.rows} {f.shape}", _ms(f.ours)]
        line += ["" if f.commits is None else f"{f.commits.median * 1e3:.2g}"]
        line += [f"{f.floor_s * 1e3:.3g}", f"{f.ours.best / f.floor_s:.2f}", f.bound]
        if f.theirs is not None:
            line += [_ms(f.theirs)]
            line += [_pair(f.ours.best / f.theirs.best, f.ours.median / f.theirs.median)]
        lines.append(line)
    _print_table(title, columns, lines)


def _show_speed(figures: list["SpeedFigure"], title: str) -> None:
    columns = ["", "tokens", "tok/s best/med"]
    columns += ["llama.cpp tok/s", "speed-up"] if figures[0].theirs is not None else []
    lines = []
    for f in figures:
        line = [f.name, str(f.tokens), _pair(f.tokens / f.ours.best, f.tokens / f.ours.median)]
        if f.theirs is not None:
            line += [_pair(f.tokens / f.theirs.best, f.tokens / f.theirs.median)]
            line += [_pair(f.theirs.best / f.ours.best, f.theirs.median / f.ours.median)]
        lines.append(line)
    _print_table(title, columns, lines)


def _print_table(title: str, columns: list[str], lines: list[list[str]]) -> None:
    from rich.console import Console

    from pydflash.bench.report import table

    Console().print(table(title, columns, lines))


def _counts(text: str) -> list[int]:
    words = text.replace(" ", "").split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= 256 for word in words):
        raise ConfigError(f"--rows {text} must be row counts of 1 to 256, with commas between")
    return [int(word) for word in words]


def require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"--{name} {value} leaves nothing to measure; give 1 or more")


def _ms(samples: "Samples") -> str:
    return f"{samples.best * 1e3:.3g}/{samples.median * 1e3:.3g}"


def _pair(first: float, second: float) -> str:
    return f"{first:.2f}/{second:.2f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
