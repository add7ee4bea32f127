"""/v1/chat/completions by the official SDK, over scripts: exact events, folds, errors."""

import json
import math

import openai
import pytest

from pydflash.errors import RequestError
from tests.server.conftest import HttpClient, OpenAIClient
from tests.server.scripted import Script, ScriptedChat

pytestmark = pytest.mark.anyio

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Looks up the weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nBerlin\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
THOUGHT = "Let me think.\n</think>\n\nSunny."


def letters(text: str) -> list[str]:
    return list(text)


async def test_a_whole_reply(sdk: OpenAIClient) -> None:
    service = ScriptedChat()
    reply = await sdk(service).chat.completions.create(model="any", messages=HELLO)
    assert reply.id.startswith("chatcmpl")
    assert reply.object == "chat.completion"
    assert reply.model == "scripted"
    choice = reply.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello, world!")
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (11, 4)
    assert reply.usage.total_tokens == 15
    assert service.seen.requests[0].turns[0].content == "hello"
    assert service.seen.ends == ["done"]


async def test_chunks_of_a_stream(sdk: OpenAIClient) -> None:
    stream = await sdk(ScriptedChat()).chat.completions.create(
        model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    # White space is held until what follows it is known.
    assert [d.content for d in deltas[1:-1]] == ["Hello", ",", " world", "!"]
    assert deltas[-1].content is None
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons == [None] * 5 + ["stop"]
    assert [chunk.usage is not None for chunk in chunks] == [False] * 6 + [True]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


async def test_no_usage_unless_asked(sdk: OpenAIClient) -> None:
    stream = await sdk(ScriptedChat()).chat.completions.create(
        model="any", messages=HELLO, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("split", [letters, lambda text: [text]])
async def test_reasoning_is_apart(sdk: OpenAIClient, split) -> None:
    service = ScriptedChat(Script(pieces=split(THOUGHT), thinks=True))
    client = sdk(service)
    reply = await client.chat.completions.create(
        model="any", messages=HELLO, reasoning_effort="low"
    )
    message = reply.choices[0].message
    assert message.content == "Sunny."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "Let me think."
    assert service.seen.requests[0].thinking.effort == "low"
    assert reply.choices[0].model_extra is not None
    assert reply.choices[0].model_extra["finish_details"]["close_kind"] == "natural"

    stream = await client.chat.completions.create(model="any", messages=HELLO, stream=True)
    content, reasoning = "", ""
    async for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += (delta.model_extra or {}).get("reasoning_content", "")
    assert (content, reasoning) == ("Sunny.", "Let me think.")


@pytest.mark.parametrize("split", [letters, lambda text: [text]])
async def test_tool_calls(sdk: OpenAIClient, split) -> None:
    client = sdk(ScriptedChat(split("I look.\n" + CALL)))
    reply = await client.chat.completions.create(model="any", messages=HELLO, tools=WEATHER)
    choice = reply.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.id.startswith("call_")
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Berlin", "days": 3}

    stream = await client.chat.completions.create(
        model="any", messages=HELLO, tools=WEATHER, stream=True
    )
    first, arguments, reason = None, "", None
    async for chunk in stream:
        for part in chunk.choices[0].delta.tool_calls or []:
            first = first or part
            assert part.index == 0
            assert part.function is not None
            arguments += part.function.arguments or ""
        reason = chunk.choices[0].finish_reason or reason
    assert first is not None
    assert first.function is not None
    assert (first.function.name, reason) == ("weather", "tool_calls")
    assert json.loads(arguments) == {"city": "Berlin", "days": 3}


async def test_without_tools_a_call_is_text(sdk: OpenAIClient) -> None:
    reply = await sdk(ScriptedChat([CALL])).chat.completions.create(model="any", messages=HELLO)
    assert reply.choices[0].message.content == CALL
    assert reply.choices[0].finish_reason == "stop"


async def test_the_next_turn_brings_calls_and_results_back(sdk: OpenAIClient) -> None:
    service = ScriptedChat()
    arguments = '{"city": "Berlin"}'
    call = {"id": "call_1", "type": "function"}
    await sdk(service).chat.completions.create(
        model="any",
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            *HELLO,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**call, "function": {"name": "weather", "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ],
    )
    system, user, assistant, tool = service.seen.requests[0].turns
    assert system.content == [{"type": "text", "text": "Be brief."}]
    assert (user.role, assistant.content) == ("user", "")
    assert (assistant.calls[0].id, assistant.calls[0].arguments) == ("call_1", arguments)
    assert (tool.role, tool.call_id, tool.content) == ("tool", "call_1", "rain")


async def test_stop_strings(sdk: OpenAIClient) -> None:
    reply = await sdk(ScriptedChat(letters("one two three"))).chat.completions.create(
        model="any", messages=HELLO, stop=["two"]
    )
    assert reply.choices[0].message.content == "one "
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].model_extra == {"stop_reason": "two"}


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_tell_the_shown_text(sdk: OpenAIClient, stream: bool) -> None:
    pieces = ["Let", " me", ".</th", "ink>\n\nSun", "ny", " one", " two"]
    client = sdk(ScriptedChat(Script(pieces=pieces, thinks=True)))
    made = await client.chat.completions.create(
        model="any", messages=HELLO, logprobs=True, top_logprobs=1, stop=[" two"], stream=stream
    )
    tokens: dict[str, list] = {"content": [], "reasoning_content": []}
    if stream:
        content = ""
        async for chunk in made:
            content += chunk.choices[0].delta.content or ""
            told = chunk.choices[0].logprobs
            if told is not None:
                tokens["content"] += told.content or []
                tokens["reasoning_content"] += (told.model_extra or {}).get("reasoning_content", [])
    else:
        content = made.choices[0].message.content or ""
        told = made.choices[0].logprobs
        assert told is not None
        tokens["content"] = told.content or []
        tokens["reasoning_content"] = (told.model_extra or {})["reasoning_content"]
    assert content == "Sunny one"
    assert "".join(t.token for t in tokens["content"]) == content
    assert b"".join(bytes(t.bytes) for t in tokens["content"]) == content.encode()
    assert "".join(t["token"] for t in tokens["reasoning_content"]) == "Let me."
    assert all(math.isclose(t.logprob, -0.5) for t in tokens["content"])
    assert all(len(t.top_logprobs) == 1 for t in tokens["content"])


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices(sdk: OpenAIClient, stream: bool) -> None:
    service = ScriptedChat(["one"], ["t", "wo"], ["three"])
    made = await sdk(service).chat.completions.create(
        model="any", messages=HELLO, n=3, seed=7, stream=stream
    )
    texts = ["", "", ""]
    if stream:
        async for chunk in made:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        texts = [choice.message.content for choice in made.choices]
        assert made.usage.completion_tokens == 4
        assert made.usage.prompt_tokens == 11
    assert texts == ["one", "two", "three"]
    assert [r.params.choice for r in service.seen.requests] == [0, 1, 2]
    assert {r.params.seed for r in service.seen.requests} == {7}


async def test_every_sampling_field_arrives(http: HttpClient) -> None:
    service = ScriptedChat()
    body = {
        "messages": HELLO,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "seed": -1,
        "frequency_penalty": 0.25,
        "presence_penalty": -0.5,
        "rep_pen": 1.5,
        "rep_window": 32,
        "logit_bias": {"5": -100},
        "max_completion_tokens": 3,
        "stop": ["x", "y"],
        "session_id": "s",
        "user": "u",
        "speculate": False,
        "chat_template_kwargs": {"enable_thinking": True, "custom": 1},
        "unknown_field": {"is": "let pass"},
    }
    async with http(service) as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    request = service.seen.requests[0]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1, 0.5, 7, 0.1)
    assert (params.seed, params.max_tokens, params.stop) == (2**64 - 1, 3, ("x", "y"))
    assert (params.frequency_penalty, params.presence_penalty) == (0.25, -0.5)
    assert (params.repetition_penalty, params.rep_window) == (1.5, 32)
    assert params.logit_bias == {5: -100}
    assert (request.session, request.user, request.speculate) == ("s", "u", False)
    assert request.thinking.switch is True
    assert request.template == {"custom": 1}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"stream": "yes"}, "stream"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"prefix_cache": {"scope": "auto:0"}}, "prefix_cache.scope"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1e308}}, "logit_bias.5"),
        ({"regex": "\ud800"}, "regex"),
        ({"stop": [""]}, "stop"),
    ],
)
async def test_what_is_wrong_is_named(http: HttpClient, change: dict, param: str) -> None:
    async with http(ScriptedChat()) as client:
        reply = await client.post(
            "/v1/chat/completions",
            content=json.dumps({"messages": HELLO} | change),
            headers={"content-type": "application/json"},
        )
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


async def test_a_constraint_is_carried(sdk: OpenAIClient) -> None:
    service = ScriptedChat()
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    await sdk(service).chat.completions.create(
        model="any",
        messages=HELLO,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    constraint = service.seen.requests[0].constraint
    assert constraint is not None
    assert constraint.kind == "json_schema"
    assert json.loads(constraint.text) == schema


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_comes_before_the_stream(sdk: OpenAIClient, stream: bool) -> None:
    refusal = RequestError("too long: 9 > 8", code="context_length_exceeded", param="messages")
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk(ScriptedChat(Script(refusal=refusal))).chat.completions.create(
            model="any", messages=HELLO, stream=stream
        )
    assert caught.value.code == "context_length_exceeded"
    assert "9 > 8" in str(caught.value)


async def test_a_failing_engine_ends_the_stream_with_an_error(sdk: OpenAIClient) -> None:
    service = ScriptedChat(Script(pieces=["a", "b"], error="the engine failed: boom"))
    client = sdk(service)
    stream = await client.chat.completions.create(model="any", messages=HELLO, stream=True)
    got = [await anext(stream) for _ in range(3)]
    assert [chunk.choices[0].delta.content for chunk in got] == ["", "a", "b"]
    with pytest.raises(openai.APIError, match="boom"):
        await anext(stream)
    with pytest.raises(openai.InternalServerError, match="boom"):
        await client.chat.completions.create(model="any", messages=HELLO)
    assert service.seen.ends == ["failed", "failed"]
    assert service.board.running == []


@pytest.mark.parametrize("split", [letters, lambda text: [text]])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_one_call_where_only_one_is_wanted(sdk: OpenAIClient, split, choice: str) -> None:
    pieces = split("I look.\n" + CALL + "\n" + CALL.replace("Berlin", "Rome") + " more")
    create = sdk(ScriptedChat(pieces)).chat.completions.create
    asked = {"model": "any", "messages": HELLO, "tools": WEATHER, "tool_choice": choice}
    both = (await create(**asked)).choices[0].message.tool_calls or []
    one = (await create(**asked, parallel_tool_calls=False)).choices[0]
    assert len(both) == 2
    assert (one.finish_reason, one.message.content) == ("tool_calls", "I look.")
    assert one.message.tool_calls is not None
    (call,) = one.message.tool_calls
    assert call.function == both[0].function
    stream = await create(**asked, parallel_tool_calls=False, stream=True)
    deltas, reasons = [], []
    async for chunk in stream:
        deltas += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert {delta.index for delta in deltas} == {0}
    assert reasons[-1] == "tool_calls"
