"""ChatService: the chat contract over a live engine. Many streams in one event loop, one engine thread.

Invariant: every request handed to the engine is finished, failed or aborted when its stream ends,
however it ends; no reader makes the engine wait.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial

from pydflash.config import EngineConfig, ServerConfig
from pydflash.engine.request import Request, StepResult
from pydflash.engine.states import States
from pydflash.errors import ConfigError, EngineError, RequestError
from pydflash.sampling.mask import Grammar
from pydflash.service.answer import timings_of
from pydflash.service.build import Loaded
from pydflash.service.chat import (
    ChatEvent,
    ChatFinished,
    ChatReason,
    ChatRequest,
    ChatStarted,
    ChatUsage,
    ModelFacts,
)
from pydflash.service.guidance import Guidance
from pydflash.service.inbox import Inbox
from pydflash.service.narrator import Narrator
from pydflash.service.prompts import Prompt, Prompts, configured_card, template_from
from pydflash.service.status import Running, StatusBoard
from pydflash.service.worker import Worker
from pydflash.spec.speculator import Speculator
from pydflash.spec.trace import RoundTrace
from pydflash.text.budget import ThinkingBudget
from pydflash.text.cards import find_card
from pydflash.text.detokenizer import Detokenizer

log = logging.getLogger(__name__)

_TREE_S = 0.5  # a draft tree is kept for the status at most so often


class ChatService:
    """Answers chat requests with a loaded model. Use it in one event loop; `close` ends it."""

    def __init__(
        self,
        loaded: Loaded,
        config: ServerConfig | None = None,
        engine_config: EngineConfig | None = None,
    ) -> None:
        config = config or ServerConfig()
        engine_config = engine_config or EngineConfig()
        arch = loaded.engine.model.arch
        card = find_card([loaded.name, loaded.path.stem], arch)
        card = configured_card(card, config)
        template = loaded.template
        if config.chat_template_file:
            template = template_from(config.chat_template_file, loaded.tokenizer)
        self._prompts = Prompts(loaded.tokenizer, template, arch=arch, card=card)
        self._tokenizer = loaded.tokenizer
        self._guidance = Guidance(loaded.tokenizer)
        self._max_queue = config.max_queue
        self.facts = ModelFacts(
            name=config.model_name or loaded.path.stem,
            arch=arch,
            path=str(loaded.path),
            max_ctx=loaded.engine.max_ctx,
            vocab_size=loaded.tokenizer.vocab_size,
            max_tokens=config.default_max_tokens or min(card.max_tokens, loaded.engine.max_ctx),
            card=card,
            created=int(time.time()),
            drafter=loaded.drafter,
            template_source=template.source,
            max_concurrency=engine_config.state.max_concurrency,
            ops=loaded.ops,
            device=loaded.device,
            cache_types=(engine_config.state.cache_type_k, engine_config.state.cache_type_v),
            plan=tuple(loaded.lines()),
        )
        self.board = StatusBoard(self.facts.name)
        self.board.cache = partial(_pages, loaded.engine.states)
        self.on_failure: Callable[[EngineError], None] | None = None
        self._closing = False
        self._preparing = 0  # requests admitted and not yet with the engine
        self._worker = Worker(loaded.engine, loaded.thread)
        self._watch(loaded)

    def refuse(self) -> None:
        """Take no new requests; those under way go on."""
        self._closing = True
        self.board.close()

    def close(self) -> None:
        """End every open stream and stop the engine's thread. Blocks for one step at most."""
        self._closing = True
        self._worker.close()

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """As `Chat.stream`."""
        try:
            self._admissible(request)
            self._preparing += 1
            try:
                prompt, grammar = await asyncio.to_thread(self._prepare, request)
            finally:
                self._preparing -= 1
            budget = self._prompts.budget(prompt)
            seed = request.params.seed
            inbox = Inbox()
            asked = Request(
                prompt=prompt.tokens,
                params=replace(request.params, max_tokens=prompt.thinking.max_output),
                seed=secrets.randbits(63) if seed is None else seed,
                speculate=request.speculate,
                grammar=grammar,
                steer=budget,
            )
            ticket = self._worker.submit(asked, inbox.put)
        except RequestError as error:
            self.board.error(error.code)
            raise
        except EngineError as error:  # it died with nobody listening
            self.board.error("engine_failed")
            self._check_engine(error)
            raise
        running = _running(request, prompt)
        self.board.begin(running)
        finished: ChatFinished | None = None
        try:
            yield ChatStarted(prompt_tokens=len(prompt.tokens), seed=asked.seed)
            telling = _Telling(self, request, prompt, budget, running)
            while finished is None:
                for item in await inbox.get():
                    if isinstance(item, EngineError):
                        raise item
                    if item.error is not None:
                        raise item.error
                    for event in telling.take(item):
                        yield event
                    if telling.is_over and not item.finished:
                        self._worker.abort(ticket)
                    if item.finished:
                        finished = telling.finished(item, asked.seed)
                        break
            yield finished
        except EngineError as error:
            self.board.error("engine_failed")
            self._check_engine(error)
            raise
        finally:
            if finished is None:
                self._worker.abort(ticket)
            self.board.finish(running, finished)

    async def count_tokens(self, request: ChatRequest) -> int:
        prompt = await asyncio.to_thread(
            self._prompts.prepare, request, self.facts.max_ctx, self.facts.max_tokens
        )
        return len(prompt.tokens)

    async def render(self, request: ChatRequest) -> str:
        return await asyncio.to_thread(self._prompts.render, request)

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        return await asyncio.to_thread(
            self._tokenizer.encode, text, add_special=add_special, parse_special=parse_special
        )

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return await asyncio.to_thread(self._tokenizer.decode, list(tokens))

    def _admissible(self, request: ChatRequest) -> None:
        if self._closing:
            raise RequestError("the server is stopping", code="stopping", status=503)
        if len(self.board.running) + self._preparing >= self._max_queue:
            raise RequestError(
                f"{self._max_queue} requests are waiting or under way; try again later",
                code="overloaded",
                status=503,
            )

    def _prepare(self, request: ChatRequest) -> tuple[Prompt, Grammar | None]:
        """What takes time before a request can go to the engine. Raises RequestError."""
        prompt = self._prompts.prepare(request, self.facts.max_ctx, self.facts.max_tokens)
        constraint = self._prompts.constraint(request, prompt)
        if constraint is None:
            return prompt, None
        try:
            return prompt, self._guidance.compile(constraint)
        except ConfigError as error:
            raise RequestError(str(error), code="unsupported", param=constraint.param) from error

    def _check_engine(self, error: EngineError) -> None:
        """Has the engine itself stopped, or only this answer?"""
        if self._worker.failure is not None and not self._closing and self.board.failure is None:
            self.board.failure = str(error)
            log.error("the engine has stopped: %s", error)
            if self.on_failure is not None:
                self.on_failure(error)

    def _watch(self, loaded: Loaded) -> None:
        """Keep the last draft trees for the status. Called back on the engine's thread."""
        proposer, trees, last = loaded.engine.proposer, self.board.trees, 0.0
        text = self._tokenizer

        def on_round(trace: RoundTrace) -> None:
            nonlocal last
            now = time.monotonic()
            if len(trace.tokens) > 1 and now - last >= _TREE_S:
                last = now
                pieces = [text.token_bytes(t).decode("utf-8", "replace") for t in trace.tokens]
                trees.append(
                    {
                        "position": trace.position,
                        "tokens": pieces,
                        "parents": list(trace.parents),
                        "logp": [round(p, 3) for p in trace.logp],
                        "path": list(trace.path),
                        "drawn": text.token_bytes(trace.drawn).decode("utf-8", "replace"),
                        "draft_ms": round(trace.draft_s * 1000, 2),
                        "step_ms": round(trace.step_s * 1000, 2),
                    }
                )

        if isinstance(proposer, Speculator):
            proposer.on_round = on_round


class _Telling:
    """One answer: results of steps to events."""

    def __init__(
        self,
        service: ChatService,
        request: ChatRequest,
        prompt: Prompt,
        budget: ThinkingBudget | None,
        running: Running,
    ) -> None:
        self._service = service
        self._prompt = prompt
        self._budget = budget
        self._running = running
        self._tokenizer = tokenizer = service._tokenizer
        form = prompt.form
        self._decoder = Detokenizer(
            tokenizer, skip_special=True, continuing=True, shown=form.shows if form else None
        )
        tools = request.tools if request.tool_choice.mode != "none" else None
        self._narrator = Narrator(
            form,
            tools=tools,
            starts_in_reasoning=prompt.starts_in_reasoning,
            stops=request.params.stop,
            raw=tokenizer.token_bytes if request.params.logprobs is not None else None,
        )
        self._written: list[str] | None = [] if tools else None
        self._count = 0
        self._thought = 0

    @property
    def is_over(self) -> bool:
        """A stop string has come: nothing more will be told."""
        return self._narrator.stop is not None

    def take(self, result: StepResult) -> list[ChatEvent]:
        """The events of a step, and of the end of the text if it is the last."""
        narrator, events, count = self._narrator, list[ChatEvent](), self._count
        texts = []
        for draw in result.draws:
            if draw.token == result.stop_token or self.is_over:
                break
            self._count += 1
            self._thought += narrator.in_reasoning
            text = self._decoder.push(draw.token)
            texts.append(text)
            hidden = not text and self._tokenizer.is_special(draw.token)
            events += narrator.push(text, None if hidden else draw)
        if result.finished and not self.is_over:
            texts.append(self._decoder.flush())
            events += narrator.push(texts[-1])
            events += narrator.finish()
        if self._written is not None:
            self._written += texts
        self._service.board.progress(self._running, "".join(texts), self._count - count)
        return events

    def finished(self, result: StepResult, seed: int) -> ChatFinished:
        """The last event, once `result` says that the sequence has ended."""
        narrator, budget, sequence = self._narrator, self._budget, result.sequence
        assert result.finish is not None
        assert result.finish != "error"
        reason: ChatReason = "stop" if narrator.stop is not None else result.finish
        if narrator.num_calls and reason == "stop":
            reason = "tool_calls"
        for dropped in narrator.dropped:
            log.warning("a call was dropped (%s): %.200r", dropped.reason, dropped.text)
        self._service.board.totals.dropped_calls += len(narrator.dropped)
        if narrator.ids and self._written is not None:
            text, thought = "".join(self._written), "".join(narrator.reasoning)
            self._service._prompts.remember(self._prompt, narrator.ids, text, thought)
        return ChatFinished(
            reason=reason,
            usage=ChatUsage(
                prompt_tokens=sequence.num_prompt,
                completion_tokens=self._count,
                cached_tokens=sequence.cached,
                reasoning_tokens=min(
                    budget.thinking_tokens if budget else self._thought, self._count
                ),
                draft=sequence.draft if sequence.draft.rounds else None,
            ),
            timings=timings_of(sequence, self._count),
            seed=seed,
            stop=narrator.stop,
            close_kind=budget.close_kind if budget else None,
            degenerate=budget is not None and budget.degenerate,
        )


def _pages(states: States) -> dict[str, int]:
    """Read while the engine works: each figure is right, their sum may be off for a moment."""
    free, cached = states.pool.num_free, len(states.cache) if states.cache is not None else 0
    return {
        "free_pages": free,
        "cached_pages": cached,
        "used_pages": max(states.pool.num_pages - free - cached, 0),
    }


def _running(request: ChatRequest, prompt: Prompt) -> Running:
    last = request.turns[-1].content if request.turns else prompt.text
    params = request.params
    return Running(
        face=request.face,
        streamed=request.streamed,
        prompt_excerpt=last if isinstance(last, str) else prompt.text[-160:],
        prompt_tokens=len(prompt.tokens),
        max_output=prompt.thinking.max_output,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        thinking=prompt.thinking.enabled,
        session=request.session,
        messages=len(request.turns),
    )
