"""ChatService over the real engine with tiny models: one event loop, many streams, every end."""

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from pydflash.config import EngineConfig, RuntimeConfig, ServerConfig, SpecConfig, StateConfig
from pydflash.errors import ConfigError, ContextLengthError, EngineError, RequestError
from pydflash.sampling.params import SamplingParams
from pydflash.service.build import Loaded, load
from pydflash.service.chat import (
    ChatEvent,
    ChatFinished,
    ChatReply,
    ChatRequest,
    ChatStarted,
    ToolChoice,
    fold,
)
from pydflash.service.constraint import Constraint
from pydflash.service.inbox import MOST, Inbox
from pydflash.service.service import ChatService
from pydflash.text.history import Turn
from pydflash.text.thinking import ThinkingRequest
from pydflash.text.toolset import Tool, Toolset

pytestmark = pytest.mark.anyio

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
ENGINE = EngineConfig(
    runtime=RuntimeConfig(threads=1), state=StateConfig(max_concurrency=4), spec=SpecConfig()
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "thinking.jinja"
    path.write_text(THINKING)
    return path


@pytest.fixture
def loaded(tiny_llama: Path) -> Loaded:
    return load(tiny_llama, ENGINE)


@pytest.fixture
def service(loaded: Loaded, template: Path) -> Iterator[ChatService]:
    made = ChatService(loaded, ServerConfig(chat_template_file=str(template)), ENGINE)
    yield made
    made.close()


def ask(text: str = "hello", **more) -> ChatRequest:
    params = SamplingParams(**{"max_tokens": 24, "temperature": 1.0, "seed": 3, "ignore_eos": True})
    params = dataclasses.replace(params, **more.pop("params", {}))
    return ChatRequest(turns=(Turn(role="user", content=text),), params=params, **more)


async def events_of(events: AsyncGenerator[ChatEvent, None]) -> list[ChatEvent]:
    return [event async for event in events]


def free_pages(loaded: Loaded) -> int:
    """Those that only the prefix cache holds count: they are given back when they are needed."""
    states = loaded.engine.states
    assert states.cache is not None
    return states.pool.num_free + len(states.cache)


async def test_the_next_turn_finds_the_last_ones_prompt(service: ChatService) -> None:
    asked = ask("word " * 90, params={"max_tokens": 4})
    first = await fold(service.stream(asked))
    turns = (
        *asked.turns,
        Turn(role="assistant", content=first.content),
        Turn(role="user", content="go on"),
    )
    second = await fold(service.stream(dataclasses.replace(asked, turns=turns)))
    assert first.finished.usage.cached_tokens == 0
    assert second.finished.usage.cached_tokens >= 256
    assert service.board.totals.cached_tokens == second.finished.usage.cached_tokens
    assert service.board.record()["cache"]["cached_pages"] > 0


async def test_a_stream_begins_and_ends(service: ChatService) -> None:
    events = await events_of(service.stream(ask()))
    started, finished = events[0], events[-1]
    assert isinstance(started, ChatStarted)
    assert isinstance(finished, ChatFinished)
    assert started.prompt_tokens == finished.usage.prompt_tokens
    assert started.prompt_tokens == await service.count_tokens(ask())
    assert (finished.reason, finished.usage.completion_tokens) == ("length", 24)
    assert (started.seed, finished.seed) == (3, 3)
    assert service.board.running == []
    assert service.board.totals.completion_tokens == 24


async def test_streams_together_answer_as_alone(service: ChatService) -> None:
    requests = [ask(text, params={"logprobs": 1}) for text in ("a", "b" * 40, "c", "d" * 9, "e")]
    alone = [await fold(service.stream(r)) for r in requests]
    together = await asyncio.gather(*(fold(service.stream(r)) for r in requests))
    assert [(r.content, r.logprobs) for r in alone] == [(r.content, r.logprobs) for r in together]


async def test_drafts_change_nothing(service: ChatService) -> None:
    request = ask("a b a b a b", params={"temperature": 0.0, "logprobs": 2, "max_tokens": 60})
    on = await fold(service.stream(request))
    off = await fold(service.stream(dataclasses.replace(request, speculate=False)))
    assert on.finished.usage.draft is not None
    assert on.finished.usage.draft.nodes > 0
    assert off.finished.usage.draft is None
    assert _same(on) == _same(off)


async def test_logprobs_tell_the_whole_text(service: ChatService) -> None:
    reply = await fold(service.stream(ask(params={"logprobs": 3, "max_tokens": 60})))
    tokens = reply.logprobs["content"]
    assert "".join(t.text for t in tokens) == reply.content
    assert all(t.logprob < 0 and len(t.top) == 3 for t in tokens)


async def test_a_stop_string_ends_the_request(service: ChatService, loaded: Loaded) -> None:
    whole = (await fold(service.stream(ask(params={"max_tokens": 60})))).content
    stop = whole[10:13]
    before = whole.index(stop)
    reply = await fold(service.stream(ask(params={"max_tokens": 400, "stop": (stop,)})))
    assert reply.content == whole[:before]
    assert (reply.finished.reason, reply.finished.stop) == ("stop", stop)
    assert reply.finished.usage.completion_tokens < 60


async def test_leaving_frees_the_pages(service: ChatService, loaded: Loaded) -> None:
    full = free_pages(loaded)
    streams = [service.stream(ask(params={"max_tokens": 400})) for _ in range(6)]
    for stream in streams:
        await anext(stream)
        await anext(stream)
    assert free_pages(loaded) < full
    assert len(service.board.running) == 6
    for stream in streams:
        await stream.aclose()
    assert service.board.running == []
    await fold(service.stream(ask(params={"max_tokens": 1})))
    for _ in range(100):
        if loaded.engine.is_idle and free_pages(loaded) == full:
            break
        await asyncio.sleep(0.02)
    assert free_pages(loaded) == full
    assert service.board.totals.finished == {"abort": 6, "length": 1}


@pytest.mark.parametrize("speculate", [True, False])
async def test_a_thought_is_closed_by_force(service: ChatService, speculate: bool) -> None:
    request = ask(
        thinking=ThinkingRequest(asked=True, budget_tokens=20),
        params={"max_tokens": 60, "logprobs": 1, "temperature": 0.0},
        speculate=speculate,
    )
    reply = await fold(service.stream(request))
    finished = reply.finished
    assert reply.reasoning
    assert "</think>" not in reply.reasoning + reply.content
    assert reply.content
    closer = len(await service.tokenize("</think>\n\n"))
    assert finished.usage.reasoning_tokens == 20 + closer
    assert finished.close_kind == "hard"
    assert finished.usage.completion_tokens <= 60
    other = await fold(service.stream(dataclasses.replace(request, speculate=not speculate)))
    assert _same(reply) == _same(other)


@pytest.mark.parametrize("speculate", [True, False])
async def test_a_constraint_holds_after_the_thought(service: ChatService, speculate: bool) -> None:
    request = ask(
        thinking=ThinkingRequest(asked=True, budget_tokens=12),
        constraint=Constraint(kind="regex", text="(yes|no) [a-c]{5}"),
        params={"max_tokens": 80, "ignore_eos": False},
        speculate=speculate,
    )
    reply = await fold(service.stream(request))
    assert re.fullmatch("(yes|no) [a-c]{5}", reply.content)
    assert reply.reasoning
    assert reply.finished.reason == "stop"


@pytest.mark.parametrize("mode", ["required", "named"])
async def test_a_call_can_be_demanded(service: ChatService, mode) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x", "y"]}},
        "required": ["a"],
    }
    tools = Toolset([Tool(name="f", parameters=schema), Tool(name="g", parameters=schema)])
    request = ask(
        tools=tools,
        tool_choice=ToolChoice(mode=mode, name="g" if mode == "named" else "", parallel=False),
        params={"max_tokens": 200, "ignore_eos": False},
    )
    reply = await fold(service.stream(request))
    assert reply.finished.reason == "tool_calls"
    (call,) = reply.calls
    assert call.complete
    assert json.loads(call.arguments)["a"] in ("x", "y")
    assert call.name == "g" or mode == "required"
    assert reply.content == ""


async def test_without_asking_there_is_no_thought(service: ChatService) -> None:
    reply = await fold(service.stream(ask()))
    assert reply.reasoning == ""
    assert reply.finished.close_kind is None


async def test_what_cannot_be_is_refused_before_it_starts(service: ChatService) -> None:
    with pytest.raises(ContextLengthError, match=r"has \d+ tokens and the context holds 512"):
        await anext(service.stream(ask("x " * 600)))
    broken = dataclasses.replace(ask(), constraint=Constraint(kind="regex", text="("))
    with pytest.raises(RequestError, match="regex cannot be followed"):
        await anext(service.stream(broken))
    both = dataclasses.replace(
        ask(),
        tools=Toolset([Tool(name="f")]),
        tool_choice=ToolChoice(mode="required"),
        constraint=Constraint(kind="json_object"),
    )
    with pytest.raises(RequestError, match="exclude each other"):
        await anext(service.stream(both))
    with pytest.raises(RequestError, match="outside the vocabulary"):
        await anext(service.stream(ChatRequest(prompt=(10**6,))))
    with pytest.raises(RequestError, match="empty"):
        await anext(service.stream(ChatRequest()))
    assert service.board.running == []


async def test_a_full_queue_refuses(loaded: Loaded) -> None:
    service = ChatService(loaded, ServerConfig(max_queue=1), ENGINE)
    try:
        first = service.stream(ask(params={"max_tokens": 400}))
        await anext(first)
        with pytest.raises(RequestError) as caught:
            await anext(service.stream(ask()))
        assert (caught.value.status, caught.value.code) == (503, "overloaded")
        await first.aclose()
        assert (await fold(service.stream(ask()))).content
    finally:
        service.close()


async def test_a_failing_engine_ends_every_stream(
    service: ChatService, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[EngineError] = []
    service.on_failure = failures.append
    streams = [service.stream(ask(params={"max_tokens": 400})) for _ in range(3)]
    for stream in streams:
        await anext(stream)

    def broken() -> list:
        raise RuntimeError("boom")

    monkeypatch.setattr(loaded.engine, "step", broken)
    for stream in streams:
        with pytest.raises(EngineError, match="boom"):
            await events_of(stream)
    assert service.board.failure is not None
    assert len(failures) == 1
    with pytest.raises(EngineError, match="stopped"):
        await anext(service.stream(ask()))


async def test_closing_ends_every_stream(loaded: Loaded) -> None:
    service = ChatService(loaded, None, ENGINE)
    stream = service.stream(ask(params={"max_tokens": 400}))
    await anext(stream)
    await asyncio.to_thread(service.close)
    with pytest.raises(EngineError, match="closed"):
        await events_of(stream)
    with pytest.raises(RequestError, match="stopping"):
        await anext(service.stream(ask()))
    assert service.board.failure is None


async def test_an_inbox_drops_a_reader_that_falls_behind() -> None:
    inbox = Inbox()
    for _ in range(MOST + 10):
        inbox.put(EngineError("x"))
    items = []
    while len(items) <= MOST:
        items += await asyncio.wait_for(inbox.get(), 5)
    assert len(items) == MOST + 1
    assert "behind" in str(items[-1])


async def test_calls_are_remembered_for_the_next_turn(service: ChatService) -> None:
    prompts = service._prompts
    prompt = prompts.prepare(ask(), 512, 100)
    prompts.remember(prompt, ["call_1"], "all of it", "a thought")
    past = prompts.memory.recall(("call_1",))
    assert past is not None
    assert past.reasoning == "a thought"


def test_a_template_that_is_not_there(loaded: Loaded) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        ChatService(loaded, ServerConfig(chat_template_file="nowhere.jinja"), ENGINE)


def _same(reply: ChatReply) -> tuple:
    finished = reply.finished
    return (
        reply.content,
        reply.reasoning,
        reply.logprobs,
        finished.reason,
        finished.close_kind,
        finished.usage.completion_tokens,
        finished.usage.reasoning_tokens,
    )
