"""What clients of the Responses API send, and what it means here."""

from typing import Any

import pytest

from pydflash.errors import RequestError
from pydflash.server.responses import request_of
from pydflash.server.responses_body import ResponsesBody
from pydflash.service.chat import ChatRequest, Constraint, ToolChoice
from pydflash.text.history import PastCall, Turn
from tests.server.scripted import ScriptedChat

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def asked(**fields: Any) -> ChatRequest:
    body = ResponsesBody.model_validate({"input": "Hi", **fields})
    return request_of(body, ScriptedChat().facts, {"session-id": "s1"})[0]


def test_a_turn_of_tools_comes_back_as_turns() -> None:
    request = asked(
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Use tools."},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Hi "},
                    {"type": "input_text", "text": "there"},
                ],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "I must look."}],
                "content": None,
                "encrypted_content": None,
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a":1}'},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "***"},
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
            {
                "type": "custom_tool_call_output",
                "call_id": "c2",
                "output": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_text", "text": "b"},
                ],
            },
            {"type": "function_call", "call_id": "c3", "name": "look", "arguments": ""},
            {"type": "function_call_output", "call_id": "c3", "output": {"ok": True}},
        ],
    )
    parts = [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]
    assert request.turns == (
        Turn(role="system", content="Be brief."),
        Turn(role="developer", content="Use tools."),
        Turn(role="user", content=parts),
        Turn(
            role="assistant",
            content="Looking.",
            reasoning="I must look.",
            calls=(
                PastCall(id="c1", name="look", arguments='{"a":1}'),
                PastCall(id="c2", name="patch", arguments={"input": "***"}),
            ),
        ),
        Turn(role="tool", content="seen", call_id="c1"),
        Turn(role="tool", content="a\nb", call_id="c2"),
        Turn(role="assistant", calls=(PastCall(id="c3", name="look", arguments=""),)),
        Turn(role="tool", content='{"ok": true}', call_id="c3"),
    )
    assert request.session == "s1"


def test_what_codex_sends_besides() -> None:
    request = asked(
        tools=[TOOL, {"type": "web_search", "external_web_access": False}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k1",
        client_metadata={"a": "b"},
        text={"verbosity": "low"},
    )
    assert request.tools.names == ("look",)
    assert (request.session, request.streamed, request.thinking.asked) == ("k1", True, True)
    assert request.params.logprobs is None
    assert request.constraint is None


def test_more_tools_may_be_declared_in_between() -> None:
    more = {"type": "additional_tools", "role": "developer", "tools": [TOOL | {"name": "more"}]}
    request = asked(tools=[TOOL], input=[{"role": "user", "content": "Hi"}, more])
    assert request.tools.names == ("look", "more")


@pytest.mark.parametrize(
    ("choice", "meant", "left"),
    [
        ("required", ToolChoice(mode="required"), ("look", "patch")),
        ("none", ToolChoice(mode="none"), ("look", "patch")),
        (
            {"type": "function", "name": "look"},
            ToolChoice(mode="named", name="look"),
            ("look", "patch"),
        ),
        (
            {"type": "custom", "name": "patch"},
            ToolChoice(mode="named", name="patch"),
            ("look", "patch"),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "look"}],
            },
            ToolChoice(mode="required"),
            ("look",),
        ),
    ],
)
def test_tool_choice(choice: Any, meant: ToolChoice, left: tuple[str, ...]) -> None:
    request = asked(tools=[TOOL, {"type": "custom", "name": "patch"}], tool_choice=choice)
    assert (request.tool_choice, request.tools.names) == (meant, left)


def test_reasoning_effort_and_structured_output() -> None:
    assert asked().thinking.asked is None
    assert asked(reasoning={"effort": "low"}).thinking.effort == "low"
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    meant = Constraint(kind="json_schema", text='{"type": "object"}', param="text.format.schema")
    assert asked(text={"format": form}).constraint == meant
    assert asked(text={"format": {"type": "json_object"}}).constraint == Constraint(
        kind="json_object", param="text.format"
    )
    assert asked(text={"format": {"type": "text"}}).constraint is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "song"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"role": "king", "content": ""}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "n"}]},
            "input[0].arguments",
        ),
        ({"tool_choice": {"type": "function", "name": "gone"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(**fields)
    assert caught.value.param == param
