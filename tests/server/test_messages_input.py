"""What Anthropic clients send, and what it means here."""

from typing import Any

import pytest

from pydflash.errors import RequestError
from pydflash.server.messages import request_of
from pydflash.server.messages_body import MessagesBody
from pydflash.service.chat import ChatRequest, Constraint, ToolChoice
from pydflash.text.history import PastCall, Turn
from tests.server.scripted import ScriptedChat

TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
USER = {"role": "user", "content": "Hi"}


def asked(**fields: Any) -> ChatRequest:
    body = MessagesBody.model_validate({"messages": [USER], "max_tokens": 9, **fields})
    return request_of(body, ScriptedChat().facts)


def test_a_turn_of_tools_comes_back_as_turns() -> None:
    request = asked(
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: v=1;"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            USER,
            {"role": "system", "content": "Two tools are there."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I must look.", "signature": "s"},
                    {"type": "redacted_thinking", "data": "abc"},
                    {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}},
                    {"type": "tool_use", "id": "call_2", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    },
                    {"type": "tool_result", "tool_use_id": "call_2", "is_error": True},
                    {"type": "text", "text": "And "},
                    {"type": "text", "text": "now?"},
                ],
            },
        ],
    )
    parts = [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]
    assert request.turns[1:] == (
        Turn(role="user", content="Hi"),
        Turn(
            role="user",
            content="<system-reminder>\nTwo tools are there.\n</system-reminder>",
        ),
        Turn(
            role="assistant",
            content="Looking.",
            reasoning="I must look.",
            calls=(
                PastCall(id="call_1", name="look", arguments={"at": 1}),
                PastCall(id="call_2", name="look", arguments={}),
            ),
        ),
        Turn(role="tool", content="a\nb", call_id="call_1"),
        Turn(role="tool", content="", call_id="call_2"),
        Turn(role="user", content=parts),
    )
    assert request.turns[0].role == "system"
    assert [part["text"] for part in request.turns[0].content] == [  # type: ignore[index]
        "x-anthropic-billing-header: v=1;",
        "Be brief.",
    ]


def test_sampling_and_names() -> None:
    request = asked(
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["END", "\n\nHuman:"],
        metadata={"user_id": "u1"},
        stream=True,
        service_tier="auto",
        context_management={"edits": []},
    )
    params = request.params
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 4)
    assert params.stop == ("END", "\n\nHuman:")
    assert params.max_tokens == 9
    assert (request.user, request.streamed, request.face) == ("u1", True, "anthropic")


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "any"}, ToolChoice(mode="required")),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            ToolChoice(mode="required", parallel=False),
        ),
        ({"type": "tool", "name": "look"}, ToolChoice(mode="named", name="look")),
    ],
)
def test_tool_choice(choice: dict[str, Any] | None, meant: ToolChoice) -> None:
    server_tool = {"type": "web_search_20250305", "name": "web_search"}
    request = asked(tools=[TOOL, server_tool], tool_choice=choice)
    assert request.tool_choice == meant
    assert request.tools.names == ("look",)
    assert request.tools.ignored == ("web_search_20250305",)


def test_thinking_is_off_unless_asked_for() -> None:
    effort = {"effort": "low"}
    assert not asked(output_config=effort).thinking.effort
    assert asked(thinking={"type": "disabled"}).thinking.asked is False
    enabled = asked(thinking={"type": "enabled", "budget_tokens": 2048}).thinking
    assert (enabled.asked, enabled.budget_tokens) == (True, 2048)
    adaptive = asked(thinking={"type": "adaptive"}, output_config=effort).thinking
    assert (adaptive.asked, adaptive.effort) == (True, "low")
    switched = asked(
        thinking={"type": "adaptive"}, chat_template_kwargs={"enable_thinking": False}
    ).thinking
    assert switched.switch is False


def test_structured_output() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for fields, path in (
        ({"output_config": {"format": form}}, "output_config.format.schema"),
        ({"output_format": form}, "output_format.schema"),
    ):
        meant = Constraint(kind="json_schema", text='{"type": "object"}', param=path)
        assert asked(**fields).constraint == meant


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER, {"role": "assistant", "content": "And"}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "song"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]},
                    USER,
                ]
            },
            "messages[0].content[0].input",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "1", "content": [{"a": 1}]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0].type",
        ),
        ({"tool_choice": {"type": "tool", "name": "gone"}, "tools": [TOOL]}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"name": ""}]}, "tools[0].name"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(**fields)
    assert caught.value.param == param
