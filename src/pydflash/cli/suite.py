"""`pydflash bench suite`: HumanEval, GSM8K and MT-bench, plainly and with drafts, prompt by prompt."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli.bench import Json, PeerPython, Vs
from pydflash.cli.options import configured
from pydflash.cli.run import open_llm, show_plan
from pydflash.cli.sampling import SamplingFlags
from pydflash.config import EngineConfig
from pydflash.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from pydflash.bench.pairs import Pair
    from pydflash.bench.prompts import PromptSet
    from pydflash.bench.suite import Suite
    from pydflash.service.llm import LLM

_PEER_CTX = 4096  # of a peer, which takes the memory at once


@configured(sampling=SamplingFlags, engine=EngineConfig)
def suite(
    model: Annotated[str, Parameter(help="catalogue name, path, or hf:owner/repo/file")] = (
        catalog.DEFAULT_MODEL
    ),
    *,
    tasks: Annotated[
        str,
        Parameter(
            help="with commas: humaneval, gsm8k, mtbench, math500=FILE, or JSONL files whose lines have "
            '"prompt" or "messages"'
        ),
    ] = "humaneval,gsm8k,mtbench",
    limit: Annotated[int, Parameter(help="prompts of a task, evenly spread; 0: all")] = 10,
    vs: Vs = None,
    peer_python: PeerPython = None,
    json: Json = None,
    markdown: Annotated[
        Path | None, Parameter(help="save the table here", show_default=False)
    ] = None,
    svg: Annotated[Path | None, Parameter(help="save a chart here", show_default=False)] = None,
    sampling: SamplingFlags,
    engine: EngineConfig,
) -> None:
    """Answer the same prompts plainly and with drafts, in turn; check that the tokens are the same."""
    from pydflash.bench.prompts import prompt_set

    params = sampling.params()
    if params.max_tokens is None:
        raise ConfigError("--max-tokens 0 leaves answers without an end; give 1 or more")
    if params.stop:
        raise ConfigError(
            "--stop cuts answers inside a round, where time has no meaning; leave it out"
        )
    if limit < 0:
        raise ConfigError(f"--limit {limit} must be 0 (all) or more")
    if params.seed is None:
        params = replace(params, seed=0)
    sets = [prompt_set(word.strip()).pick(limit) for word in tasks.split(",") if word.strip()]
    if not sets:
        raise ConfigError("--tasks names no task")
    path = catalog.resolve(model)
    # Every prompt is answered twice: the second must not find what the first left.
    engine = replace(engine, state=replace(engine.state, prefix_cache="off"))
    with open_llm(path, engine) as llm:
        show_plan(llm)
        ctx = llm.loaded.plan.max_ctx
        ctx = min(ctx, _PEER_CTX) if vs is not None else ctx
        with _peer(vs, peer_python, llm, engine, ctx) as process:
            found = _measure(llm, ctx, sets, params, process)
            head = _head(llm, path, params, process)
    _save(found, head, json, markdown, svg)
    if found.identical is False:
        from pydflash.bench.suite_report import mismatch

        raise EngineError(mismatch(found))


def _measure(llm: "LLM", ctx: int, sets: list["PromptSet"], params: Any, process: Any) -> "Suite":
    from pydflash.bench.pairs import TaskFigures
    from pydflash.bench.subject import LlamaCpp, Local
    from pydflash.bench.suite import run_suite
    from pydflash.bench.suite_report import progress_line

    totals = {s.name: sum(len(case.later) + 1 for case in s.cases) for s in sets}
    done: dict[str, list[Pair]] = {}

    def tell(task: str, pair: "Pair") -> None:
        pairs = done.setdefault(task, [])
        pairs.append(pair)
        line = progress_line(TaskFigures(task=task, pairs=tuple(pairs)), totals[task])
        print(line, file=sys.stderr)

    peer = LlamaCpp(process) if process is not None else None
    return run_suite(Local(llm, ctx=ctx), sets, params, peer=peer, on_pair=tell)


def _peer(vs: str | None, python: str | None, llm: "LLM", config: EngineConfig, ctx: int) -> Any:
    from pydflash.bench.peer import beside

    loaded, state = llm.loaded, config.state
    types = (state.cache_type_k, state.cache_type_v)
    return beside(
        vs,
        python,
        loaded.path,
        threads=loaded.threads,
        ctx=ctx,
        device=loaded.device,
        cache_types=types,
    )


def _head(llm: "LLM", path: Path, params: Any, process: Any) -> dict[str, Any]:
    from pydflash.bench.machine import provenance
    from pydflash.bench.subject import drafter_of

    loaded = llm.loaded
    head = provenance(path, loaded.threads) | {
        "ops": loaded.ops,
        "drafter": drafter_of(llm),
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "seed": params.seed,
    }
    return head | ({"peer": process.version} if process is not None else {})


def _save(
    found: "Suite", head: dict[str, Any], json: Path | None, markdown: Path | None, svg: Path | None
) -> None:
    from rich.console import Console

    from pydflash.bench import suite_report
    from pydflash.bench.chart import chart
    from pydflash.bench.report import save, table, write

    drafter = head["drafter"] or "draft"
    peer = "llama.cpp" if "peer" in head else None
    for made in suite_report.tables(found, drafter, peer):
        Console().print(table(made.title, made.columns, made.rows))
    for sentence in suite_report.sentences(found):
        print(sentence)
    body = head | suite_report.to_json(found)
    if json is not None:
        save(json, "suite", body)
    if markdown is not None:
        write(markdown, suite_report.markdown(found, drafter, peer, head), "--markdown")
    if svg is not None:
        write(svg, chart(body), "--svg")
