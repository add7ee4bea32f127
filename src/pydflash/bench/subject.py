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
from pydflash.spec.speculator import Speculator
from pydflash.spec.trace import RoundTrace


class Local:
    """An LLM as a suite's subject: both ways of one loaded model."""

    def __init__(self, llm: LLM, *, ctx: int) -> None:
        """`ctx` bounds prompt and answer, at most the model's plan."""
        self._llm = llm
        self.ctx = ctx
        self.drafts = _speculator(llm) is not None

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
    speculator = _speculator(llm)
    return None if speculator is None else speculator.drafter.name


def traced(llm: LLM, prompt: str, params: SamplingParams) -> Trace:
    """Answer a prompt through the chat template and keep every round. ConfigError without a drafter."""
    speculator = _speculator(llm)
    if speculator is None:
        raise ConfigError(
            f"nothing drafts for {llm.loaded.name}, so there are no rounds to show: leave out "
            "--no-speculation, or name a drafter with --draft"
        )
    rounds: list[RoundTrace] = []
    tokens = llm.encode([{"role": "user", "content": prompt}])
    params = replace(
        params, logprobs=params.logprobs or 0
    )  # the target's, to show beside the drafter's
    speculator.on_round = rounds.append
    try:
        done = fold(llm.start(tokens, params))
    finally:
        speculator.on_round = None
    return Trace(
        model=llm.loaded.name,
        drafter=speculator.drafter.name,
        prompt=prompt,
        start=len(tokens),
        tokens=done.tokens,
        rounds=tuple(rounds),
        target_logp=tuple(told.logprob for told in done.logprobs),
    )


def _speculator(llm: LLM) -> Speculator | None:
    proposer = llm.loaded.engine.proposer
    return proposer if isinstance(proposer, Speculator) else None
