"""Tokens a round of the drafter in the box, in the engine, by fixed budget: no clock, so any machine will do.

    python -m tests.oracles.drafter_acceptance TARGET.gguf OUT.json BUDGETS LIMIT [MAX_TOKENS]

BUDGETS as in 16,24,32 (0: chains of the whole block, adaptive: chosen by cost). LIMIT prompts of each task,
evenly spread over it; MT-bench's second turn follows the first answer. Greedy, 256 tokens. OUT.json is
written after every task and kept: what it has already is not measured again.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydflash.bench.prompts import Case, prompt_set
from pydflash.config import EngineConfig, RuntimeConfig, SpecConfig, StateConfig
from pydflash.sampling.params import SamplingParams
from pydflash.service.llm import LLM, fold
from pydflash.spec.stats import DraftStats

TASKS = ("humaneval", "gsm8k", "mtbench")


def main(target: str, out: str, budgets: str, limit: str, tokens: str = "256") -> None:
    path = Path(out)
    saved = json.loads(path.read_text()) if path.exists() else {}
    params = SamplingParams(temperature=0.0, max_tokens=int(tokens))
    for budget in budgets.split(","):
        with LLM(Path(target), config=_config(budget)) as llm:
            for task in TASKS:
                key = f"{budget} {task}"
                if key in saved:
                    continue
                total, answers = DraftStats(), []
                for case in prompt_set(task).pick(int(limit)).cases:
                    for stats in _answers(llm, case, params):
                        total.merge(stats)
                        answers.append([stats.rounds, stats.tokens])
                saved[key] = {
                    "acceptance_length": round(total.acceptance_length, 3),
                    "nodes_a_round": round(total.nodes / total.rounds, 2),
                    "by_depth": [round(rate, 3) for rate in total.depth_rates],
                    "answers": answers,  # rounds and tokens of each
                }
                print(key, saved[key]["acceptance_length"], len(answers), "answers", flush=True)
                path.write_text(json.dumps(saved, indent=1) + "\n")
    for budget in budgets.split(","):
        print(f"{budget}: {_pooled(saved, budget):.2f} over all tasks")


def _config(budget: str) -> EngineConfig:
    fixed = 0 if budget == "adaptive" else int(budget)
    return EngineConfig(
        runtime=RuntimeConfig(threads=1),
        state=StateConfig(prefix_cache="off", max_ctx=4096),
        spec=SpecConfig(ddtree_budget=fixed, draft_chain=budget == "0"),
    )


def _answers(llm: LLM, case: Case, params: SamplingParams) -> list[DraftStats]:
    messages, found = list(case.messages), []
    for question in (None, *case.later):
        if question is not None:
            messages.append({"role": "user", "content": question})
        done = fold(llm.start(llm.encode(messages), params))
        found.append(done.finish.draft)
        messages.append({"role": "assistant", "content": done.text})
    return found


def _pooled(saved: dict[str, Any], budget: str) -> float:
    counts = [pair for task in TASKS for pair in saved[f"{budget} {task}"]["answers"]]
    return sum(t for _, t in counts) / sum(r for r, _ in counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
