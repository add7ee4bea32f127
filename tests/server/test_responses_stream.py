"""What clients of the Responses API are sent, event by event."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pydflash.errors import EngineError
from pydflash.server.responses import request_of
from pydflash.server.responses_body import ResponsesBody
from tests.server.scripted import Script, ScriptedChat

TOOLS = [
    {
        "type": "function",
        "name": "read_file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
            "required": ["path"],
        },
    }
]
CALL = (
    "<tool_call>\n<function=read_file>\n<parameter=path>\na b.txt\n</parameter>\n"
    "<parameter=lines>\n3\n</parameter>\n</function>\n</tool_call>"
)


def events_of(script: Script, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events and the whole response."""

    async def run() -> tuple[list[dict[str, Any]], dict[str, Any]]:
        chat = ScriptedChat(script)
        body = ResponsesBody.model_validate({"input": "Hi", **fields})
        asked, stream = request_of(body, chat.facts, {})
        events: list[dict[str, Any]] = []
        try:
            async for event in chat.stream(asked):
                events += stream.feed(event)
        except EngineError as error:
            events += stream.fail(str(error))
        return events, stream.response

    return asyncio.run(run())


def short(events: list[dict[str, Any]]) -> list[Any]:
    """(type, output index, text) of each; deltas of one item that follow one another are one."""
    found: list[Any] = []
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        kind = event["type"].removeprefix("response.")
        index = event.get("output_index")
        if "item" in event:
            found.append((kind, index, event["item"]["type"], event["item"]["status"]))
        elif kind.endswith(".delta"):
            if found and found[-1][:2] == (kind, index):
                found[-1] = (kind, index, found[-1][2] + event["delta"])
            else:
                found.append((kind, index, event["delta"]))
        elif "response" in event:
            found.append((kind, event["response"]["status"]))
        else:
            texts = (event.get(key) for key in ("text", "arguments", "input"))
            text = next((t for t in texts if t is not None), event.get("part", {}).get("text"))
            found.append((kind, index, text))
    return found


def test_text() -> None:
    events, response = events_of(Script(pieces=["Hel", "lo"], cached_tokens=4))
    message = response["output"][0]
    assert short(events) == [
        ("created", "in_progress"),
        ("in_progress", "in_progress"),
        ("output_item.added", 0, "message", "in_progress"),
        ("content_part.added", 0, ""),
        ("output_text.delta", 0, "Hello"),
        ("output_text.done", 0, "Hello"),
        ("content_part.done", 0, "Hello"),
        ("output_item.done", 0, "message", "completed"),
        ("completed", "completed"),
    ]
    assert events[4] == {
        "type": "response.output_text.delta",
        "item_id": message["id"],
        "output_index": 0,
        "content_index": 0,
        "delta": "Hel",
        "logprobs": [],
        "sequence_number": 4,
    }
    assert events[2]["item"]["content"] == []
    assert events[-1]["response"] == response
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["id"] == response["id"]
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert message == {
        "type": "message",
        "id": message["id"],
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (11, 2, 13)
    assert usage["input_tokens_details"]["cached_tokens"] == 4


@pytest.mark.parametrize("summary", [None, "auto"])
def test_reasoning_text_and_a_call_in_one_answer(summary: str | None) -> None:
    text = f"I look.\n</think>\n\nReading it.\n{CALL}"
    events, response = events_of(
        Script(pieces=[text], thinks=True), tools=TOOLS, reasoning={"summary": summary}
    )
    if summary:
        thought = [
            ("reasoning_summary_part.added", 0, ""),
            ("reasoning_summary_text.delta", 0, "I look."),
            ("reasoning_summary_text.done", 0, "I look."),
            ("reasoning_summary_part.done", 0, "I look."),
        ]
    else:
        thought = [
            ("content_part.added", 0, ""),
            ("reasoning_text.delta", 0, "I look."),
            ("reasoning_text.done", 0, "I look."),
            ("content_part.done", 0, "I look."),
        ]
    arguments = '{"path": "a b.txt", "lines": 3}'
    assert short(events)[2:] == [
        ("output_item.added", 0, "reasoning", "in_progress"),
        *thought,
        ("output_item.done", 0, "reasoning", "completed"),
        ("output_item.added", 1, "message", "in_progress"),
        ("content_part.added", 1, ""),
        ("output_text.delta", 1, "Reading it."),
        ("output_text.done", 1, "Reading it."),
        ("content_part.done", 1, "Reading it."),
        ("output_item.done", 1, "message", "completed"),
        ("output_item.added", 2, "function_call", "in_progress"),
        ("function_call_arguments.delta", 2, arguments),
        ("function_call_arguments.done", 2, arguments),
        ("output_item.done", 2, "function_call", "completed"),
        ("completed", "completed"),
    ]
    reasoning, _, call = response["output"]
    told = reasoning["summary"] if summary else reasoning["content"]
    kind = "summary_text" if summary else "reasoning_text"
    assert told == [{"type": kind, "text": "I look."}]
    assert (call["name"], call["arguments"]) == ("read_file", arguments)
    assert call["call_id"].startswith("call_")
    assert call["id"] != call["call_id"]


def test_how_the_text_is_cut_changes_nothing() -> None:
    text = f"I look.\n</think>\n\nReading it.\n{CALL}\n{CALL}"
    whole, _ = events_of(Script(pieces=[text], thinks=True), tools=TOOLS)
    for at in range(1, len(text)):
        pieces = [text[:at], text[at:]]
        cut, _ = events_of(Script(pieces=pieces, thinks=True), tools=TOOLS)
        assert short(cut) == short(whole), at
    letters, response = events_of(Script(pieces=list(text), thinks=True), tools=TOOLS)
    assert short(letters) == short(whole)
    assert len(response["output"]) == 4


def test_the_limit_makes_it_incomplete() -> None:
    events, response = events_of(Script(pieces=["a", "b", "c"]), max_output_tokens=2)
    assert short(events)[-2:] == [
        ("output_item.done", 0, "message", "incomplete"),
        ("incomplete", "incomplete"),
    ]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == "ab"


def test_an_engine_that_fails_ends_the_stream_with_it() -> None:
    events, response = events_of(Script(pieces=["a"], error="out of luck"))
    assert short(events)[-1] == ("failed", "failed")
    assert response["error"] == {"code": "server_error", "message": "out of luck"}


def test_a_call_that_breaks_off_is_incomplete() -> None:
    broken = "<tool_call>\n<function=read_file>\n<parameter=path>\na b"
    events, response = events_of(Script(pieces=list(broken)), tools=TOOLS)
    (call,) = response["output"]
    assert (call["status"], call["arguments"]) == ("incomplete", '{"path": "a b"')
    assert short(events)[-2] == ("output_item.done", 0, "function_call", "incomplete")


def test_tools_that_take_text_and_tools_in_a_namespace() -> None:
    tools = [
        {"type": "custom", "name": "patch", "description": "Change files"},
        {"type": "namespace", "name": "agents", "description": "", "tools": TOOLS},
        {"type": "web_search"},
    ]
    patch = "<tool_call><function=patch><parameter=input>\n*** Begin\n</parameter></function></tool_call>"
    events, response = events_of(Script(pieces=[patch, CALL]), tools=tools)
    custom, function = response["output"]
    assert custom == {
        "type": "custom_tool_call",
        "id": custom["id"],
        "status": "completed",
        "call_id": custom["call_id"],
        "name": "patch",
        "input": "*** Begin",
    }
    assert (function["name"], function["namespace"]) == ("read_file", "agents")
    assert short(events)[2:6] == [
        ("output_item.added", 0, "custom_tool_call", "in_progress"),
        ("custom_tool_call_input.delta", 0, "*** Begin"),
        ("custom_tool_call_input.done", 0, "*** Begin"),
        ("output_item.done", 0, "custom_tool_call", "completed"),
    ]


def test_log_probabilities() -> None:
    script = Script(pieces=["Hel", "lo"])
    events, response = events_of(script, top_logprobs=1)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    told = [entry for e in deltas for entry in e["logprobs"]]
    assert [entry["token"] for entry in told] == ["Hel", "lo"]
    assert told[0]["logprob"] == -0.5
    assert told[0]["bytes"] == list(b"Hel")
    assert [len(entry["top_logprobs"]) for entry in told] == [1, 1]
    assert response["output"][0]["content"][0]["logprobs"] == told
    without, _ = events_of(replace(script), include=["message.output_text.logprobs"])
    assert all(
        entry["top_logprobs"] == []
        for e in without
        if e["type"] == "response.output_text.delta"
        for entry in e["logprobs"]
    )
