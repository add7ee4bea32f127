"""`pydflash run`: one prompt in, the answer streamed to stdout, the figures to stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from pydflash import catalog
from pydflash.catalog.entry import find, suggest
from pydflash.cli.constraint import read_constraint
from pydflash.cli.options import configured
from pydflash.cli.sampling import SamplingFlags
from pydflash.config import EngineConfig
from pydflash.errors import CatalogError, ConfigError
from pydflash.service.events import Event, Finished, TextDelta, TokenLogprob
from pydflash.spec.stats import DraftStats

if TYPE_CHECKING:
    from pydflash.service.llm import LLM

ModelOption = Annotated[
    str | None, Parameter(help="catalogue name, path, or hf:owner/repo/file", show_default=False)
]
PullFlag = Annotated[bool, Parameter(help="fetch the model first if it is missing", negative="")]
QuietFlag = Annotated[bool, Parameter(help="print the answer only", negative="")]


@configured(sampling=SamplingFlags, engine=EngineConfig)
def run(
    words: Annotated[
        list[str] | None,
        Parameter(
            name="[MODEL] [PROMPT]", help="a model, then a prompt; without one, stdin is read"
        ),
    ] = None,
    /,
    *,
    model: ModelOption = None,
    system: Annotated[str | None, Parameter(help="system message")] = None,
    raw: Annotated[
        bool, Parameter(help="no chat template: continue the text", negative="")
    ] = False,
    pull: PullFlag = False,
    quiet: QuietFlag = False,
    stats: Annotated[
        bool, Parameter(help="say how drafts fared at each depth, too", negative="")
    ] = False,
    as_json: Annotated[
        bool, Parameter(name="--json", help="print one JSON object at the end", negative="")
    ] = False,
    json_schema: Annotated[
        Path | None, Parameter(help="the answer is JSON of the schema in this file")
    ] = None,
    regex: Annotated[
        str | None, Parameter(help="the whole answer matches this regular expression")
    ] = None,
    grammar: Annotated[
        Path | None, Parameter(help="the answer is a text of the Lark grammar in this file")
    ] = None,
    sampling: SamplingFlags,
    engine: EngineConfig,
) -> None:
    """Answer one prompt with a model (default: smollm2-135m)."""
    model, prompt = split(words or [], model)
    prompt = read_prompt(prompt)
    params = sampling.params()
    if params.logprobs is not None and not as_json:
        raise ConfigError("--logprobs needs --json: there is no place for them in plain text")
    if raw and system is not None:
        raise ConfigError("--raw has no place for a system message: leave out --system")
    constraint = read_constraint(json_schema=json_schema, regex=regex, grammar=grammar)
    path = locate(model, may_pull=pull)
    with open_llm(path, engine) as llm:
        if not quiet:
            show_plan(llm)
        request: Any = prompt
        if not raw:
            request = [{"role": "system", "content": system}] if system is not None else []
            request.append({"role": "user", "content": prompt})
        events = llm.stream(request, params, constraint=constraint)
        if as_json:
            print(json.dumps({"model": model, **collect(events)}, ensure_ascii=False))
            return
        finished = show(events)
        if finished is not None and not quiet:
            print(figures(finished), file=sys.stderr)
            if stats and finished.draft is not None:
                print(depths(finished.draft), file=sys.stderr)


def open_llm(path: Path, engine: EngineConfig) -> "LLM":
    """The loaded model; the one place where the command line imports the engine."""
    from pydflash.service.llm import LLM

    return LLM(path, config=engine)


def locate(model: str, *, may_pull: bool) -> Path:
    """The model's file, fetched first if it is missing and that is allowed."""
    try:
        return catalog.resolve(model)
    except CatalogError:
        if not may_pull or find(model) is None:
            raise
    from pydflash.cli.pull import fetch

    return Path(fetch(model))


def show(events: Iterator[Event]) -> Finished | None:
    """Write the answer as it comes. Leaving early, by Ctrl-C or a closed pipe, aborts the request."""
    finished, last = None, ""
    try:
        # The iterator is a generator: closing it is what aborts the request.
        with closing(cast("Any", events)):
            for event in events:
                if isinstance(event, TextDelta):
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
                    last = event.text or last
                else:
                    finished = event
    finally:
        if last and not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
    return finished


def collect(events: Iterator[Event]) -> dict[str, Any]:
    """The whole stream as one JSON-ready object."""
    text: list[str] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    result: dict[str, Any] = {}
    with closing(cast("Any", events)):
        for event in events:
            if isinstance(event, TextDelta):
                text.append(event.text)
                tokens += event.tokens
                logprobs += event.logprobs
            else:
                result = {
                    "finish_reason": event.reason,
                    "stop": event.stop,
                    "seed": event.seed,
                    "usage": asdict(event.usage),
                    "timings": asdict(event.timings),
                }
                if event.draft is not None:
                    result["draft"] = asdict(event.draft)
                tokens = list(event.tokens) or tokens
    result = {"text": "".join(text), "tokens": tokens} | result
    if logprobs:
        result["logprobs"] = [asdict(entry) for entry in logprobs]
    return result


def figures(finished: Finished) -> str:
    """The closing line: counts, rates, the wait for the first token; with drafts, how they fared."""
    usage, timings = finished.usage, finished.timings
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    draft = f" · {finished.draft.line()}" if finished.draft is not None else ""
    return (
        f"prompt {usage.prompt_tokens} tokens{cached}, {timings.prefill_tps:.1f} tok/s · "
        f"decode {usage.completion_tokens} tokens, {timings.decode_tps:.1f} tok/s · "
        f"first token {timings.first_token_s:.2f} s{draft}"
    )


def depths(draft: DraftStats) -> str:
    """Of the rounds that drafted to each depth, the share that accepted a token there."""
    rates = ", ".join(f"{d} {rate:.0%}" for d, rate in enumerate(draft.depth_rates, start=1))
    return f"accepted by depth: {rates or 'nothing was drafted'}"


def show_plan(llm: "LLM") -> None:
    for line in llm.plan:
        print(line, file=sys.stderr)


def split(words: list[str], model: str | None) -> tuple[str, str | None]:
    """(model, prompt) from what stands on the line: MODEL PROMPT, MODEL alone, or PROMPT alone."""
    if model is not None or not words:
        if len(words) > 1:
            raise ConfigError("one prompt only: put it in quotes")
        return model or catalog.DEFAULT_MODEL, words[0] if words else None
    first, *rest = words
    if _is_model(first):
        if len(rest) > 1:
            raise ConfigError("one model and one prompt: put the prompt in quotes")
        return first, rest[0] if rest else None
    if rest or (" " not in first and suggest(first)):
        raise ConfigError(
            f"{first} is neither a file nor a model of the catalogue{suggest(first)}; "
            "put the prompt in quotes"
        )
    return catalog.DEFAULT_MODEL, first


def _is_model(word: str) -> bool:
    if word.startswith("hf:") or find(word) is not None:
        return True
    return word.endswith((".gguf", ".safetensors")) or ("/" in word and Path(word).exists())


def read_prompt(prompt: str | None) -> str:
    if prompt is None:
        if sys.stdin.isatty():
            raise ConfigError(
                "no prompt: give one in quotes or pipe it in; for a conversation, `pydflash chat`"
            )
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise ConfigError("the prompt is empty")
    return prompt
