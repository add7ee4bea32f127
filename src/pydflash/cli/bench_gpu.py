"""`pydflash bench gpu` and `bench make-drafter`: every promised figure of a device, and what they need."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli.bench import Json, PeerPython, Vs
from pydflash.cli.options import configured
from pydflash.config import EngineConfig
from pydflash.errors import ConfigError


@configured(engine=EngineConfig)
def gpu(
    model: Annotated[str, Parameter(help="catalogue name, path, or hf:owner/repo/file")],
    *,
    only: Annotated[
        str, Parameter(help="parts to run, with commas; all by default", show_default=False)
    ] = "",
    repeats: Annotated[int, Parameter(help="of every step that is timed")] = 20,
    commit: Annotated[
        str | None,
        Parameter(help="commit of the source, where it is no checkout", show_default=False),
    ] = None,
    vs: Vs = None,
    peer_python: PeerPython = None,
    json: Json = None,
    engine: EngineConfig,
) -> None:
    """Measure steps, trees, rounds, prefill, memory and start on one loaded model, and where time goes.

    Parts are ceilings, memory, step, verify, prefill, decode, round, forced, breakdown, eight and start; a
    part that fails does not stop the next. Rounds need --draft FILE. --vs adds the part peer: the same file
    in the same context on the same device, when our own model is gone. With --json F, figures are saved
    after every part, and F's name with .md and .svg gets the tables and the picture.
    """
    from pydflash.bench.gpu import measure_gpu, parse_parts
    from pydflash.bench.gpu_report import markdown, picture
    from pydflash.bench.report import save, write

    parts = parse_parts(only, vs=vs)
    if repeats < 2:
        raise ConfigError(f"--repeats {repeats} leaves nothing to measure; give 2 or more")

    def keep(body: dict[str, Any]) -> None:
        if json is None:
            return
        save(json, "gpu", body)
        write(json.with_suffix(".md"), markdown(body), "--json")
        write(json.with_suffix(".svg"), picture(body), "--json")

    def say(line: str) -> None:
        print(line, flush=True)

    path = catalog.resolve(model)
    body = measure_gpu(
        path,
        engine,
        parts,
        say=say,
        save=keep,
        repeats=repeats,
        commit=commit,
        peer_python=peer_python,
    )
    print()
    print(markdown(body), flush=True)


def make_drafter(
    target: Annotated[
        str,
        Parameter(help="the target: a GGUF file, a JSON file of dimensions, or a built-in name"),
    ],
    out: Annotated[Path, Parameter(help="the GGUF file to write")],
    /,
    *,
    layers: Annotated[int, Parameter(help="layers, and taps")] = 5,
    block: Annotated[int, Parameter(help="tokens of a block, the pending one included")] = 16,
    type: Annotated[str, Parameter(help="formats, as for quantize")] = "Q8_0",
    seed: int = 0,
    force: Annotated[bool, Parameter(help="replace an existing file")] = False,
) -> None:
    """Write a drafter of the published shape with random weights, to measure what rounds cost."""
    from pydflash.bench.make_drafter import make_drafter as make
    from pydflash.bench.make_drafter import published

    if out.exists() and not force:
        raise ConfigError(f"{out} exists; remove it, or replace it with --force")
    path = make(published(target, layers, block), out, type=type, seed=seed)
    print(f"{path}: {path.stat().st_size / 2**20:.0f} MiB")
