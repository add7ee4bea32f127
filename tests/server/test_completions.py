"""/v1/completions by the official SDK, over scripts."""

import openai
import pytest

from tests.server.conftest import OpenAIClient
from tests.server.scripted import ScriptedChat

pytestmark = pytest.mark.anyio


async def test_a_whole_reply(sdk: OpenAIClient) -> None:
    service = ScriptedChat([" a", "<think>", "b"])
    reply = await sdk(service).completions.create(model="any", prompt="Say", logprobs=1)
    assert reply.object == "text_completion"
    choice = reply.choices[0]
    assert choice.text == " a<think>b"  # nothing is read out of plain text
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == [" a", "<think>", "b"]
    assert choice.logprobs.text_offset == [0, 2, 9]
    assert service.seen.requests[0].prompt == "Say"


async def test_several_prompts_and_choices(sdk: OpenAIClient) -> None:
    service = ScriptedChat(["0"], ["1"], ["2"], ["3"])
    reply = await sdk(service).completions.create(model="any", prompt=["x", "y"], n=2)
    assert [(c.index, c.text) for c in reply.choices] == [(0, "0"), (1, "1"), (2, "2"), (3, "3")]
    assert [r.prompt for r in service.seen.requests] == ["x", "x", "y", "y"]
    assert [r.params.choice for r in service.seen.requests] == [0, 1, 0, 1]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (22, 4)


async def test_token_ids(sdk: OpenAIClient) -> None:
    service = ScriptedChat(["x"])
    await sdk(service).completions.create(model="any", prompt=[1, 2, 3])
    assert service.seen.requests[0].prompt == (1, 2, 3)


async def test_a_stream(sdk: OpenAIClient) -> None:
    stream = await sdk(ScriptedChat(["ab", "cd", "ef"])).completions.create(
        model="any",
        prompt="x",
        stream=True,
        logprobs=0,
        stop="de",
        stream_options={"include_usage": True},
    )
    text, offsets, reasons = "", [], []
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.text
            reasons.append(choice.finish_reason)
            if choice.logprobs:
                offsets += choice.logprobs.text_offset or []
    assert text == "abc"
    assert reasons[-1] == "stop"
    assert offsets == [0, 2]


@pytest.mark.parametrize("name", ["suffix", "echo", "best_of"])
async def test_what_is_not_there_is_refused_by_name(sdk: OpenAIClient, name: str) -> None:
    value = {"suffix": "x", "echo": True, "best_of": 3}[name]
    with pytest.raises(openai.BadRequestError, match=name):
        await sdk(ScriptedChat()).completions.create(model="any", prompt="x", **{name: value})
