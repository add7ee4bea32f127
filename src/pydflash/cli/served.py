"""`pydflash bench load`: what holds of a server over HTTP, measured on one in a process of its own."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli.bench import Json, Ops, Threads
from pydflash.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from pydflash.bench.load import LoadFigures

Served = Annotated[str, Parameter(help="catalogue name, path, or hf:owner/repo/file")]
Markdown = Annotated[Path | None, Parameter(help="save a report here", show_default=False)]
Note = Annotated[
    str, Parameter(help="a sentence to save with the figures: what else the machine was doing")
]


def load(
    model: Served = catalog.DEFAULT_MODEL,
    *,
    clients: Annotated[int, Parameter(help="clients at once")] = 32,
    seconds: Annotated[float, Parameter(help="how long")] = 300.0,
    max_ctx: Annotated[int, Parameter(help="context of each sequence")] = 1024,
    kv_pages: Annotated[
        int, Parameter(help="KV pages: so few that the prefix cache fills them in the first minute")
    ] = 96,
    threads: Threads = 0,
    ops: Ops = "auto",
    seed: int = 0,
    note: Note = "",
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Send many clients to a server at once, some of them rude; watch answers, memory and pages.

    Fails if an answer did not end as it should, memory grew (in runs of three minutes and more), or pages
    were not given back.
    """
    from pydflash.bench import load_report
    from pydflash.bench.live import LiveServer
    from pydflash.bench.load import run_load
    from pydflash.bench.report import write

    if clients < 1 or seconds <= 0:
        raise ConfigError("--clients and --seconds must leave something to do; give 1 or more")
    path = catalog.resolve(model)
    options = ["--max-ctx", str(max_ctx), "--kv-pages", str(kv_pages), *_engine(threads, ops)]

    def tell(figures: "LoadFigures") -> None:
        print(load_report.progress_line(figures), file=sys.stderr)

    with LiveServer(path, options) as server:
        figures = run_load(server, clients=clients, seconds=seconds, seed=seed, tell=tell)
    head = _head(path, threads, options, note)
    text = load_report.markdown(figures, head)
    print(text)
    _save_json(json, "load", lambda: head | load_report.to_json(figures))
    if markdown is not None:
        write(markdown, text, "--markdown")
    if figures.findings:
        raise EngineError("the load run found: " + "; ".join(figures.findings))


def _engine(threads: int, ops: str) -> list[str]:
    return [*(["--threads", str(threads)] if threads else []), "--ops", ops]


def _head(path: Path, threads: int, options: list[str], note: str) -> dict[str, Any]:
    from pydflash.bench.machine import provenance
    from pydflash.device import default_threads

    head = provenance(path, threads or default_threads()) | {"server_options": options}
    return head | ({"note": note} if note else {})


def _save_json(json: Path | None, kind: str, body: Callable[[], dict[str, Any]]) -> None:
    from pydflash.bench.report import save

    if json is not None:
        save(json, kind, body())
