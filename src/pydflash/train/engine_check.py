"""engine_check: the finished drafter in the serving engine, on prompts that were held out.

Replay counts what drafts are worth on paper; this counts what the engine accepts, with its own kernels and
the drafter as it was written to disk.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydflash.config import EngineConfig, SpecConfig, StateConfig
from pydflash.sampling.params import SamplingParams
from pydflash.service.events import Finished
from pydflash.service.llm import LLM
from pydflash.train.documents import Document

_CONTEXT = 2048


def engine_acceptance(
    target: Path, drafter: Path, documents: Sequence[Document], *, each: int, budget: int
) -> dict[str, float]:
    """Tokens a round by domain and in "all": greedy answers as long as the documents', `each` of a domain."""
    longest = max(len(d.tokens) for d in documents)
    config = EngineConfig(
        state=StateConfig(max_ctx=min(_CONTEXT, longest + 64)),
        spec=SpecConfig(draft=str(drafter), ddtree_budget=budget),
    )
    seen: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    rounds: Counter[str] = Counter()
    with LLM(target, config=config) as llm:
        for document in documents:
            seen[document.domain] += 1
            if seen[document.domain] > each or len(document.tokens) > _CONTEXT:
                continue
            params = SamplingParams(max_tokens=len(document.answer))
            *_, end = llm.start(document.tokens[: document.start].tolist(), params)
            assert isinstance(end, Finished)
            if end.draft is not None:
                for name in (document.domain, "all"):
                    tokens[name] += end.draft.tokens
                    rounds[name] += end.draft.rounds
    return {name: tokens[name] / max(rounds[name], 1) for name in sorted(tokens)}
