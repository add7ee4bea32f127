"""What Anthropic clients are sent, event by event."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from pydflash.server.messages_body import MessagesBody, params_of, prompt_of
from pydflash.server.messages_stream import MessageStream
from tests.server.scripted import Script, ScriptedChat

TOOLS = [
    {
        "name": "read_file",
        "description": "Read a file",
        "input_schema": {
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
    """The events and the whole message."""

    async def run() -> tuple[list[dict[str, Any]], dict[str, Any]]:
        body = MessagesBody.model_validate(
            {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1000, **fields}
        )
        request = prompt_of(body)
        request = replace(request, params=params_of(body, ScriptedChat().facts))
        chat = ScriptedChat(script)
        stream = MessageStream("m")
        events = [w async for e in chat.stream(request) for w in stream.feed(e)]
        return events, stream.message

    return asyncio.run(run())


def merged(events: list[dict[str, Any]]) -> list[Any]:
    """Short forms; deltas of one block that follow one another are one."""
    found: list[Any] = []
    for event in events:
        match event:
            case {"type": "content_block_delta", "index": i, "delta": {"type": kind, **rest}}:
                (text,) = rest.values()
                if found and found[-1][:2] == (i, kind):
                    found[-1] = (i, kind, found[-1][2] + text)
                else:
                    found.append((i, kind, text))
            case {"type": "content_block_start", "index": i, "content_block": block}:
                found.append(("start", i, block["type"]))
            case {"type": "content_block_stop", "index": i}:
                found.append(("stop", i))
            case {"type": "message_delta", "delta": delta}:
                found.append(("message_delta", delta["stop_reason"], delta["stop_sequence"]))
            case {"type": kind}:
                found.append((kind,))
    return found


def test_text() -> None:
    events, message = events_of(Script(pieces=["Hel", "lo"], prompt_tokens=11, cached_tokens=4))
    assert [e["type"] for e in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0]["message"]
    assert start == {
        "id": message["id"],
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 11,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }
    assert events[2]["content_block"] == {"type": "text", "text": ""}
    assert events[3] == {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "Hel"},
    }
    assert events[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": message["usage"],
    }
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    timings = message["usage"].pop("timings")
    assert timings["decode_tokens_per_sec"] == 4.0
    assert message["usage"] == {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
        "output_tokens_details": {"thinking_tokens": 0},
    }


def test_thinking_text_and_a_call_in_one_answer() -> None:
    text = f"I look.\n</think>\n\nReading it.\n{CALL}"
    events, message = events_of(Script(pieces=[text], thinks=True), tools=TOOLS)
    call = message["content"][2]
    assert merged(events) == [
        ("message_start",),
        ("ping",),
        ("start", 0, "thinking"),
        (0, "thinking_delta", "I look."),
        (0, "signature_delta", "unsigned"),
        ("stop", 0),
        ("start", 1, "text"),
        (1, "text_delta", "Reading it."),
        ("stop", 1),
        ("start", 2, "tool_use"),
        (2, "input_json_delta", '{"path": "a b.txt", "lines": 3}'),
        ("stop", 2),
        ("message_delta", "tool_use", None),
        ("message_stop",),
    ]
    assert message["content"][:2] == [
        {"type": "thinking", "thinking": "I look.", "signature": "unsigned"},
        {"type": "text", "text": "Reading it."},
    ]
    assert call == {
        "type": "tool_use",
        "id": call["id"],
        "name": "read_file",
        "input": {"path": "a b.txt", "lines": 3},
    }
    assert call["id"].startswith("call_")


def test_two_calls_are_two_blocks() -> None:
    events, message = events_of(Script(pieces=[CALL + "\n" + CALL]), tools=TOOLS)
    assert [e for e in merged(events) if e[0] == "start"] == [
        ("start", 0, "tool_use"),
        ("start", 1, "tool_use"),
    ]
    ids = [block["id"] for block in message["content"]]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("thinks", [False, True])
def test_how_the_text_is_cut_changes_nothing(thinks: bool) -> None:
    text = ("I look.\n</think>\n\n" if thinks else "") + f"Reading it.\n{CALL}"
    whole, _ = events_of(Script(pieces=[text], thinks=thinks), tools=TOOLS)
    for at in range(1, len(text)):
        cut, _ = events_of(Script(pieces=[text[:at], text[at:]], thinks=thinks), tools=TOOLS)
        assert merged(cut) == merged(whole), at
    letters, message = events_of(Script(pieces=list(text), thinks=thinks), tools=TOOLS)
    assert merged(letters) == merged(whole)
    assert message["content"][-1]["input"] == {"path": "a b.txt", "lines": 3}


def test_stop_sequences_and_the_limit() -> None:
    events, message = events_of(Script(pieces=["one ", "END two"]), stop_sequences=["END"])
    assert merged(events)[-2] == ("message_delta", "stop_sequence", "END")
    assert message["content"] == [{"type": "text", "text": "one "}]
    events, message = events_of(Script(pieces=["a", "b", "c"]), max_tokens=2)
    assert merged(events)[-2] == ("message_delta", "max_tokens", None)
    assert message["content"] == [{"type": "text", "text": "ab"}]


def test_a_call_that_breaks_off_has_no_input() -> None:
    broken = "<tool_call>\n<function=read_file>\n<parameter=path>\na b"
    events, message = events_of(Script(pieces=list(broken)), tools=TOOLS)
    assert message["content"][0]["input"] == {}
    assert merged(events)[-3] == ("stop", 0)


def test_hidden_thoughts_are_there_and_empty() -> None:
    async def run() -> list[dict[str, Any]]:
        body = MessagesBody.model_validate({"messages": [{"role": "user", "content": "Hi"}]})
        chat = ScriptedChat(Script(pieces=["Hm.</think>Yes"], thinks=True))
        stream = MessageStream("m", show_thinking=False)
        async for event in chat.stream(prompt_of(body)):
            for wire in stream.feed(event):
                assert "Hm." not in json.dumps(wire)
        return stream.message["content"]

    assert asyncio.run(run()) == [
        {"type": "thinking", "thinking": "", "signature": "unsigned"},
        {"type": "text", "text": "Yes"},
    ]
