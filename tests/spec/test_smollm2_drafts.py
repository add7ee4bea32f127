"""The shipped drafter and look-ups on the real model: 200 prompts, what plain decoding says."""

import random
from pathlib import Path

import pytest

from pydflash import catalog
from pydflash.config import EngineConfig, SpecConfig, StateConfig
from pydflash.sampling.params import SamplingParams
from pydflash.service.llm import LLM, fold

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(3000)]

TOPICS = (
    "the tides", "a bicycle", "prime numbers", "bread", "glaciers", "honey bees", "the printing press",
    "a lighthouse", "sorting a list", "compound interest", "the water cycle", "chess", "volcanoes",
    "a job interview", "solar panels", "the violin", "recursion", "vaccines", "a garden", "maps",
)  # fmt: skip
TASKS = (
    "Explain {} in three sentences.",
    "Write a Python function that has to do with {}, with a docstring and an example.",
    "Give five facts about {} as a numbered list.",
    "Write a short dialogue between two children about {}.",
    "A shop sells 12 things about {} at 7 dollars each and gives 15 back. How much is that?",
    "Translate into French: we talked about {} all day.",
    "Rewrite in formal English: so yeah, {} is kinda cool, right?",
    "What are the pros and cons of {}?",
    "Write a haiku about {}, then explain it.",
    "Write JSON with the keys name, uses and history for {}.",
)  # fmt: skip


def prompts() -> list[str]:
    return [task.format(topic) for task in TASKS for topic in TOPICS]


def params_of(index: int) -> SamplingParams:
    """Greedy for every other prompt, else temperatures from 0.3 to 1.5 with every filter and penalty."""
    if index % 2 == 0:
        return SamplingParams(max_tokens=48)
    dice = random.Random(index)
    return SamplingParams(
        max_tokens=48,
        seed=index,
        temperature=dice.choice([0.3, 0.7, 1.0, 1.5]),
        top_k=dice.choice([0, 20, 100]),
        top_p=dice.choice([1.0, 0.95, 0.8]),
        min_p=dice.choice([0.0, 0.02]),
        repetition_penalty=dice.choice([1.0, 1.1]),
        presence_penalty=dice.choice([0.0, 0.5]),
        logit_bias=dice.choice([{}, {28: 2.0, 30: -4.0}]),
    )


def answers(spec: SpecConfig, count: int, concurrency: int) -> list[tuple[int, ...]]:
    """Tokens of the first `count` prompts, so many at once, with pages for half of them."""
    pages = 0 if concurrency == 1 else 8 * concurrency
    state = StateConfig(max_ctx=256, max_concurrency=concurrency, kv_pages=pages)
    path = Path(catalog.resolve("smollm2-135m"))
    out = []
    with LLM(path, config=EngineConfig(state=state, spec=spec)) as llm:
        asked = [[{"role": "user", "content": text}] for text in prompts()[:count]]
        for start in range(0, len(asked), concurrency):
            streams = [
                llm.stream(messages, params_of(start + i))
                for i, messages in enumerate(asked[start : start + concurrency])
            ]
            out += [fold(stream).tokens for stream in streams]
    return out


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    return answers(SpecConfig(no_speculation=True), 200, 1)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_adaptive_trees_of_the_shipped_drafter(
    plain: list[tuple[int, ...]], concurrency: int
) -> None:
    assert len(plain) == 200
    assert answers(SpecConfig(), 200, concurrency) == plain


@pytest.mark.parametrize(
    "spec",
    [
        SpecConfig(draft_chain=True),
        SpecConfig(ddtree_budget=16),
        SpecConfig(ddtree_budget=5, draft_block_size=4),
        SpecConfig(draft="lookup", ddtree_budget=8),
    ],
    ids=["chain", "tree of 16", "small tree", "look-ups"],
)
def test_fixed_shapes(plain: list[tuple[int, ...]], spec: SpecConfig) -> None:
    assert answers(spec, 60, 4) == plain[:60]
