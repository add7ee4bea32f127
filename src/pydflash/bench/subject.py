"""Who answers a suite's prompts: our own engine through the public API, and llama.cpp in its process."""

from collections.abc import Sequence
from dataclasses import replace

from pydflash.bench.pairs import Answered
from pydflash.bench.peer import PeerProcess
from pydflash.bench.prompts import Message
from pydflash.bench.trace_page import Trace
from pydflash.errors import ConfigError
from pydflash.sampling.params import SamplingParams
from pydflash.service.llm import LLM, fold
from pydflash.spec.trace import RoundTrace


class Local:
    """An LLM as a suite's subject: both ways of one loaded model."""

    def __init__(self, llm: LLM, *, ctx: int) -> None:
        """`ctx` bounds prompt and answer, at most the model's plan."""
        self._llm = llm
        self.ctx = ctx
        self.drafts = False

    def encode(self, messages: Sequence[Message]) -> list[int]:
        return self._llm.encode(messages)

    def answer(self, tokens: Sequence[int], params: SamplingParams, *, draft: bool) -> Answered:
        done = fold(self._llm.start(tokens, params, speculate=draft))
        ended_by_token = isinstance(done.finish.stop, int)
        return Answered(
            tokens=done.tokens,
            text=done.text,
            steps=max(len(done.tokens) - 1 + ended_by_token, 0),
            prefill_s=done.finish.timings.prefill_s,
            decode_s=done.finish.timings.decode_s,
            drafting=done.finish.draft if draft else None,
        )


class LlamaCpp:
    """llama.cpp's plain greedy decoding, whatever the temperature of the suite."""

    def __init__(self, process: PeerProcess) -> None:
        self._process = process

    def answer(self, tokens: Sequence[int], steps: int) -> Answered:
        told = self._process.answer(tokens, steps + 1)
        return Answered(
            tokens=tuple(told["tokens"]),
            text="",
            steps=steps,
            prefill_s=told["prefill_s"],
            decode_s=told["decode_s"],
        )


def drafter_of(llm: LLM) -> str | None:
    """The name of what drafts for a model, if anything does."""
    return None


def traced(llm: LLM, prompt: str, params: SamplingParams) -> Trace:
    """Answer a prompt through the chat template and keep every round. ConfigError without a drafter."""
    drafter = drafter_of(llm)
    if drafter is None:
        raise ConfigError(f"nothing drafts for {llm.loaded.name}: there are no rounds to show")
    rounds: list[RoundTrace] = []
    tokens = llm.encode([{"role": "user", "content": prompt}])
    done = fold(llm.start(tokens, replace(params, logprobs=params.logprobs or 0)))
    return Trace(
        model=llm.loaded.name,
        drafter=drafter,
        prompt=prompt,
        start=len(tokens),
        tokens=done.tokens,
        rounds=tuple(rounds),
        target_logp=tuple(told.logprob for told in done.logprobs),
    )
