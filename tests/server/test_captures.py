"""Where a hybrid model's conversations go on: recurrent states kept for later turns."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

import pytest

from pydflash.config import EngineConfig, RuntimeConfig, ServerConfig, StateConfig, StepConfig
from pydflash.sampling.params import SamplingParams
from pydflash.service.build import load
from pydflash.service.chat import ChatReply, ChatRequest, fold
from pydflash.service.landmarks import Keeping, landmarks
from pydflash.service.service import ChatService
from pydflash.text.history import PastCall, Turn
from pydflash.text.thinking import ThinkingRequest
from pydflash.text.toolset import Tool, Toolset
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape

pytestmark = pytest.mark.anyio

GRID = 32
SYSTEM = Turn(role="system", content="You are an agent that reads files. " * 8)
TOOLS = Toolset([Tool(name="read", description="Read a file", parameters={"type": "object"})])
THINKS = ThinkingRequest(asked=True)


@pytest.fixture(scope="module", params=["its own template", "the family's"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChatService]:
    path = tiny_gguf(
        tmp_path_factory.mktemp("captures") / "tiny.gguf",
        "qwen35",
        hidden=32,
        heads=2,
        kv_heads=1,
        ffn=32,
        context=2048,
        delta=DeltaShape(k_heads=1, v_heads=2, state=8),
        omit=("tokenizer.chat_template",) if request.param == "the family's" else (),
    )
    engine = EngineConfig(
        runtime=RuntimeConfig(threads=1),
        # Ends of turns are not kept: what is found is what the service asked to be kept.
        state=StateConfig(max_concurrency=2, max_ctx=2048, captures=2, prefix_cache="prompts"),
        step=StepConfig(prefill_chunk=GRID),
    )
    made = ChatService(load(path, engine), ServerConfig(), engine)
    yield made
    made.close()


def ask(*turns: Turn) -> ChatRequest:
    params = SamplingParams(max_tokens=3, temperature=0.0, seed=1)
    return ChatRequest(turns=turns, tools=TOOLS, params=params, thinking=THINKS)


def user(text: str) -> Turn:
    return Turn(role="user", content=text)


async def answer(service: ChatService, *turns: Turn) -> ChatReply:
    return await fold(service.stream(ask(*turns)))


async def shared(service: ChatService, mine: ChatRequest, other: ChatRequest) -> int:
    """Tokens that two prompts have in common."""
    texts = [await service.render(request) for request in (mine, other)]
    a, b = [await service.tokenize(text, add_special=True) for text in texts]
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


@pytest.mark.parametrize("size", [40, 52, 64])
async def test_the_next_turn_goes_on_at_the_last_message(service: ChatService, size: int) -> None:
    """The client sends back another answer than the one given, as clients do that drop the thought."""
    question = user(f"{size} " + "what is in the file? " * size)
    first = await answer(service, SYSTEM, question)
    asked = first.finished.usage
    assert asked.prompt_tokens - asked.cached_tokens > size * 4, "the question was new"
    again = (SYSTEM, question, Turn(role="assistant", content="A list."), user("Which one?"))
    end = await shared(service, ask(SYSTEM, question), ask(*again))
    second = await answer(service, *again)
    assert second.finished.usage.cached_tokens == end // GRID * GRID > size * 4
    third = await answer(service, *again, Turn(role="assistant", content="Two."), user("Why?"))
    assert third.finished.usage.cached_tokens >= end // GRID * GRID


async def test_an_edited_message_keeps_system_prompt_and_tools(service: ChatService) -> None:
    asked, edited = user("Read it. " * 30), user("No, count the lines of it. " * 12)
    await answer(service, SYSTEM, asked)
    head = await shared(service, ask(SYSTEM, asked), ask(SYSTEM, edited))
    reply = await answer(service, SYSTEM, edited)
    assert reply.finished.usage.cached_tokens == head // GRID * GRID >= 96


async def test_a_result_of_a_tool_is_all_that_is_read(service: ChatService) -> None:
    """An agent's loop: a call, its result, and so on."""
    turns = [SYSTEM, user("Sum up what the files say, one after the other. " * 4)]
    await answer(service, *turns)
    for step in range(3):
        call = PastCall(id=f"call_{step}", name="read", arguments={"path": f"{step}.txt"})
        before = ask(*turns)
        turns.append(Turn(role="assistant", calls=(call,)))
        turns.append(Turn(role="tool", content=f"{step} " * 60, call_id=f"call_{step}"))
        end = await shared(service, before, ask(*turns))
        reply = await answer(service, *turns)
        assert reply.finished.usage.cached_tokens == end // GRID * GRID
        assert reply.finished.usage.cached_tokens > reply.finished.usage.prompt_tokens - 300


async def test_what_is_kept_changes_no_token(service: ChatService) -> None:
    turns = (SYSTEM, user("Tell me all. " * 20))
    params = replace(ask().params, max_tokens=20)
    cold = await fold(service.stream(replace(ask(*turns), params=params)))
    warm = await fold(service.stream(replace(ask(*turns), params=params)))
    assert warm.finished.usage.cached_tokens > 200
    assert (warm.content, warm.reasoning) == (cold.content, cold.reasoning)


def told(said: list[str], prompt: str, least: int = 0) -> list[int]:
    """Landmarks where a message is its own text, and a token a character."""
    messages = [{"role": "system" if i == 0 else "user", "content": s} for i, s in enumerate(said)]
    tokens = [ord(c) for c in prompt]

    def encode(some: list[dict[str, str]]) -> list[int]:
        return [ord(c) for m in some for c in m["content"]]

    return list(landmarks(messages, tokens, encode, least=least))


def test_landmarks_are_shared_tokens() -> None:
    assert told(["SYS.", "one.", "two."], "SYS.one.two.>") == [12, 4, 12, 8]
    assert told(["SYS.", "one.", "two."], "SYS.onX.two.>") == [6, 4, 6, 6], "a template rewrote it"
    assert told(["SYS.", "one.", "two."], "SYS.one.two.>", least=9) == [12, 4, 12]
    assert told(["SYS.", "one.", "two."], "SYS", least=9) == []


def test_one_landmark_for_a_point_of_the_grid() -> None:
    assert Keeping(most=2, grid=10).choose(iter([35, 5, 31, 24, 12])) == (35, 24)
    assert Keeping(most=3, grid=10).choose(iter([35, 12])) == (35, 12)
    assert Keeping(most=1, grid=10).choose(iter([7, 5])) == ()
