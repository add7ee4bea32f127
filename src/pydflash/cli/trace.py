"""`pydflash trace`: one answer with drafts, shown round by round: trees, accepted paths, costs."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pydflash import catalog
from pydflash.cli.options import configured
from pydflash.cli.run import ModelOption, QuietFlag, open_llm, read_prompt, show_plan, split
from pydflash.cli.sampling import SamplingFlags
from pydflash.config import EngineConfig
from pydflash.errors import ConfigError


@configured(sampling=SamplingFlags, engine=EngineConfig)
def trace(
    words: Annotated[
        list[str] | None,
        Parameter(
            name="[MODEL] [PROMPT]", help="a model, then a prompt; without one, stdin is read"
        ),
    ] = None,
    /,
    *,
    model: ModelOption = None,
    html: Annotated[
        Path | None, Parameter(help="write a page to open in a browser", show_default=False)
    ] = None,
    as_json: Annotated[
        Path | None, Parameter(name="--json", help="write the rounds here", show_default=False)
    ] = None,
    quiet: QuietFlag = False,
    sampling: SamplingFlags,
    engine: EngineConfig,
) -> None:
    """Answer a prompt and write down every round: the tree, what was accepted, and what it cost."""
    if html is None and as_json is None:
        raise ConfigError("say where the rounds should go: --html FILE, --json FILE, or both")
    model, prompt = split(words or [], model)
    prompt = read_prompt(prompt)
    params = sampling.params()
    path = catalog.resolve(model)
    from pydflash.bench.report import write
    from pydflash.bench.subject import traced
    from pydflash.bench.trace_page import page, to_json

    with open_llm(path, engine) as llm:
        if not quiet:
            show_plan(llm)
        found = traced(llm, prompt, params)
        decode = llm.tokenizer.decode

    def text(tokens: Any) -> str:
        return decode(tokens, continuing=True)

    if html is not None:
        write(html, page(found, text), "--html")
    if as_json is not None:
        body = json.dumps(to_json(found, text), ensure_ascii=False, indent=1)
        write(as_json, body + "\n", "--json")
    if not quiet:
        rounds = len(found.rounds)
        said = f"{len(found.tokens)} tokens in {rounds} rounds, {found.acceptance:.2f} a round"
        print(said, file=sys.stderr)
