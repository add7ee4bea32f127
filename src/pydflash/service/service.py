"""ChatService: the chat contract over a live engine. Many streams in one event loop, one engine thread.

Invariant: every request handed to the engine is finished, failed or aborted when its stream ends,
however it ends; no reader makes the engine wait.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

from pydflash.config import EngineConfig, ServerConfig
from pydflash.engine.request import Request
from pydflash.engine.states import States
from pydflash.errors import ConfigError, EngineError, RequestError
from pydflash.sampling.mask import Grammar
from pydflash.service.build import Loaded
from pydflash.service.chat import (
    ChatEvent,
    ChatFinished,
    ChatRequest,
    ChatStarted,
    Face,
    ModelFacts,
)
from pydflash.service.guidance import Guidance
from pydflash.service.inbox import Inbox
from pydflash.service.landmarks import Keeping
from pydflash.service.prompts import Prompt, Prompts, configured_card, template_from
from pydflash.service.status import Running, StatusBoard
from pydflash.service.telling import Telling, Watcher
from pydflash.service.worker import Worker
from pydflash.spec.speculator import Speculator
from pydflash.spec.trace import RoundTrace
from pydflash.text.budget import RunGuard
from pydflash.text.cards import find_card

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
        self._keeping = _keeping(loaded.engine.states)
        self._max_queue = config.max_queue
        self._runs = config.degenerate_run_tokens
        most = config.default_max_tokens or config.max_tokens or card.max_tokens
        self.facts = ModelFacts(
            name=config.model_name or loaded.path.stem,
            arch=arch,
            path=str(loaded.path),
            max_ctx=loaded.engine.max_ctx,
            vocab_size=loaded.tokenizer.vocab_size,
            max_tokens=min(most, loaded.engine.max_ctx),
            card=card,
            created=int(time.time()),
            drafter=loaded.drafter,
            drafting=_drafting(loaded),
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
        coalesce_s = config.admission_coalesce_ms / 1000
        self._worker = Worker(loaded.engine, loaded.thread, coalesce_s=coalesce_s)
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
            with _blaming(request.face):
                self._admissible(request)
                self._preparing += 1
                try:
                    prompt, grammar, marks = await asyncio.to_thread(self._prepare, request)
                finally:
                    self._preparing -= 1
                seed = request.params.seed
                inbox = Inbox()
                watcher = self._steer(request, prompt)
                asked = Request(
                    prompt=prompt.tokens,
                    params=replace(request.params, max_tokens=prompt.thinking.max_output),
                    seed=secrets.randbits(63) if seed is None else seed,
                    speculate=request.speculate,
                    reuse=request.reuse,
                    capture_at=marks,
                    grammar=grammar,
                    steer=watcher,
                )
                ticket = self._worker.submit(asked, inbox.put)
        except EngineError as error:  # it died with nobody listening
            self.board.error("engine_failed")
            self._check_engine(error)
            raise
        running = _running(request, prompt)
        self.board.begin(running)
        finished: ChatFinished | None = None
        try:
            yield ChatStarted(prompt_tokens=len(prompt.tokens), seed=asked.seed)
            telling = Telling(
                request,
                prompt,
                watcher,
                tokenizer=self._tokenizer,
                prompts=self._prompts,
                board=self.board,
                running=running,
            )
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
        facts = self.facts
        with _blaming(request.face):
            prompt = await asyncio.to_thread(
                self._prompts.prepare, request, facts.max_ctx, facts.max_tokens
            )
        return len(prompt.tokens)

    async def render(self, request: ChatRequest) -> str:
        with _blaming(request.face):
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

    def _prepare(self, request: ChatRequest) -> tuple[Prompt, Grammar | None, tuple[int, ...]]:
        """What takes time before a request can go to the engine: its prompt, its grammar, and the lengths
        of the prompt to keep a recurrent state of. Raises RequestError."""
        prompt = self._prompts.prepare(request, self.facts.max_ctx, self.facts.max_tokens)
        marks: tuple[int, ...] = ()
        if self._keeping is not None and request.reuse and len(prompt.tokens) < self.facts.max_ctx:
            grid = self._keeping.grid
            marks = self._keeping.choose(self._prompts.landmarks(request, prompt, grid))
        constraint = self._prompts.constraint(request, prompt)
        if constraint is None:
            return prompt, None, marks
        try:
            return prompt, self._guidance.compile(constraint), marks
        except ConfigError as error:
            raise RequestError(str(error), code="unsupported", param=constraint.param) from error

    def _steer(self, request: ChatRequest, prompt: Prompt) -> Watcher | None:
        """What follows the answer, token by token, if anything does."""
        if request.is_silent:
            return None
        runs = RunGuard(self._runs) if self._runs else None
        return self._prompts.budget(prompt, runs) or runs

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


def _drafting(loaded: Loaded) -> Literal["off", "dflash", "lookup"]:
    if loaded.drafter is None:
        return "off"
    return "dflash" if loaded.engine.proposer.taps else "lookup"


_PROMPT: dict[Face, str] = {
    "chat": "messages",
    "anthropic": "messages",
    "responses": "input",
    "completions": "prompt",
}


@contextmanager
def _blaming(face: Face) -> Iterator[None]:
    """What is wrong with a prompt is said of the field that each API has it in."""
    try:
        yield
    except RequestError as error:
        if error.param in ("tokens", *_PROMPT.values()):
            error.param = _PROMPT[face]
        raise


def _keeping(states: States) -> Keeping | None:
    """None where nothing has to be named: attention's pages are kept at every point of the grid."""
    if states.recurrent is None or states.cache is None or not states.captures:
        return None
    return Keeping(most=states.captures, grid=states.cache.grid)


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
