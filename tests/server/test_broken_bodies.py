"""Bodies that are almost right: a refusal says what is wrong, and nothing else may come of them."""

import copy
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.errors import RequestError
from pydflash.server import messages, responses
from pydflash.server.messages_body import MessagesBody
from pydflash.server.responses_body import ResponsesBody
from tests.server.scripted import ScriptedChat

FACTS = ScriptedChat().facts
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "a"}],
    "tools": [{"name": "look", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "look"},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "stop_sequences": ["x"],
    "metadata": {"user_id": "u"},
    "temperature": 0.5,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "c", "name": "look", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "a"}],
                },
                {"type": "document", "source": {"type": "text", "data": "d"}},
            ],
        },
    ],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "tools": [
        {"type": "function", "name": "look", "parameters": {"type": "object"}},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "d"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "more"}]},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "look"}]},
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "top_logprobs": 1,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "n"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "x"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text"}]},
        {"type": "additional_tools", "role": "developer", "tools": [{"name": "late"}]},
    ],
}
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -1, 0, ""])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["message", "function", "custom", "namespace", "none", "image", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    if isinstance(value, dict | list):
        for key, inner in items:
            found += (
                places(inner, (*path, key)) if isinstance(inner, dict | list) else [(*path, key)]
            )
    return found


def broken(body: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """The body with one or two values replaced, or left out."""
    body = copy.deepcopy(body)
    for _ in range(data.draw(st.integers(1, 2))):
        *inner, last = data.draw(st.sampled_from(places(body)))
        holder: Any = body
        for key in inner:
            holder = holder[key]
        if isinstance(holder, dict) and data.draw(st.booleans()):
            del holder[last]
        else:
            holder[last] = data.draw(JUNK)
        if not places(body):
            break
    return body


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_messages(data: st.DataObject) -> None:
    body = broken(MESSAGES, data)
    try:
        messages.request_of(MessagesBody.model_validate(body), FACTS)
    except (RequestError, pydantic.ValidationError) as error:
        refused = str(error)
    else:
        refused = "not"
    assert refused


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_responses(data: st.DataObject) -> None:
    body = broken(RESPONSES, data)
    try:
        responses.request_of(ResponsesBody.model_validate(body), FACTS, {})
    except (RequestError, pydantic.ValidationError) as error:
        refused = str(error)
    else:
        refused = "not"
    assert refused


@pytest.mark.parametrize("kind", ["messages", "responses"])
def test_the_bodies_are_right_before_they_are_broken(kind: str) -> None:
    if kind == "messages":
        messages.request_of(MessagesBody.model_validate(MESSAGES), FACTS)
    else:
        right = copy.deepcopy(RESPONSES)
        right["input"][6]["output"][0]["text"] = "o"
        responses.request_of(ResponsesBody.model_validate(right), FACTS, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "custom", "name": []}]},
        {"tools": [{"type": "function", "name": {}}, {"type": "namespace", "tools": [{}]}]},
        {"tool_choice": {"type": "allowed_tools", "tools": [{"name": []}, 3], "mode": "required"}},
        {"input": [{"type": "additional_tools", "tools": 3}]},
        {"input": [{"type": [], "role": "user"}]},
        {"input": [{"type": "reasoning", "summary": 3}]},
        {"temperature": 10**400},
        {"top_logprobs": -1},
        {"reasoning": 3},
    ],
)
def test_values_of_odd_types(fields: dict[str, Any]) -> None:
    with pytest.raises((RequestError, pydantic.ValidationError)):
        responses.request_of(
            ResponsesBody.model_validate({"input": "a", "tools": [], **fields}), FACTS, {}
        )
