"""History: one system message, typed arguments, results in call order; and the tool memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydflash.text.history import PastCall, Turn, in_call_order, messages, without_billing
from pydflash.text.memory import Remembered, ToolMemory

HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=00000;"
CALLS = (
    PastCall(id="a", name="f", arguments={"x": 1}),
    PastCall(id="b", name="g", arguments='{"y": [2]}'),
)


def result(call_id: str, text: str = "r") -> Turn:
    return Turn(role="tool", call_id=call_id, content=text)


def test_system_messages_are_merged_in_front() -> None:
    turns = [
        Turn(role="system", content="A"),
        Turn(role="user", content="hi"),
        Turn(
            role="developer", content=[{"type": "text", "text": "B"}, {"type": "text", "text": "C"}]
        ),
        Turn(role="system", content=""),
    ]
    assert messages(turns) == [
        {"role": "system", "content": "A\n\nBC"},
        {"role": "user", "content": "hi"},
    ]
    assert messages([Turn(role="user", content="hi")]) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (f"{HEADER}\nYou help.", "You help."),
        (f"  {HEADER}\n\nYou help.\n", "You help.\n"),
        (f"You help.\n{HEADER}\nMore.", "You help.\nMore."),
        (HEADER, ""),
        ("\nYou help.\n\nThe x-anthropic-billing-header: is a header.", None),
        ([{"text": HEADER}, {"text": "You help."}], "You help."),
        ([{"text": f"\n{HEADER}"}, {"text": "A"}, {"text": "B"}], "AB"),
        ([{"text": f"about {HEADER}"}], f"about {HEADER}"),
    ],
)
def test_billing_lines_are_dropped(content: Any, want: str | None) -> None:
    assert without_billing(content) == (content if want is None else want)


def test_a_call_is_what_templates_read() -> None:
    turns = [
        Turn(role="user", content="?"),
        Turn(role="assistant", content="ok", reasoning="hm", calls=CALLS),
        result("a", "1"),
        Turn(role="tool", call_id="b", content=[{"type": "text", "text": "2"}]),
    ]
    assert messages(turns)[1:] == [
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": {"y": [2]}}},
            ],
        },
        {"role": "tool", "content": "1", "tool_call_id": "a", "name": "f"},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "2"}],
            "tool_call_id": "b",
            "name": "g",
        },
    ]


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ("", {}),
        ("  ", {}),
        ({}, {}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {"arguments": "[1]"}),
        ("{oops", {"arguments": "{oops"}),
        ("NaN", {"arguments": "NaN"}),
    ],
)
def test_arguments_are_typed(arguments: Any, want: dict[str, Any]) -> None:
    turn = Turn(role="assistant", calls=(PastCall(id="a", name="f", arguments=arguments),))
    assert messages([turn])[0]["tool_calls"][0]["function"]["arguments"] == want


@pytest.mark.parametrize(
    ("order", "want"),
    [
        (["b", "a"], ["a", "b"]),
        (["b", "user", "a"], ["a", "user", "b"]),
        (["b", "?", "a", "!"], ["?", "a", "!", "b"]),
        (["", "b"], ["", "b"]),
        ([], []),
    ],
)
def test_results_come_in_the_order_of_their_calls(order: list[str], want: list[str]) -> None:
    def turn(word: str) -> Turn:
        return Turn(role="user", content="user") if word == "user" else result(word, word)

    start = [Turn(role="user", content="?"), Turn(role="assistant", calls=CALLS)]
    end = [Turn(role="assistant", content="done")]
    found = in_call_order([*start, *map(turn, order), *end])
    assert [t.content for t in found[2:-1]] == want
    assert (found[:2], found[-1:]) == (start, end)


def test_results_are_not_mixed_between_turns() -> None:
    again = (PastCall(id="c", name="h"), PastCall(id="a", name="i"))
    turns = [
        Turn(role="assistant", calls=CALLS),
        result("b"),
        result("a"),
        Turn(role="assistant", calls=again),
        result("a"),
        result("c"),
    ]
    found = [m.get("name") for m in messages(turns) if m["role"] == "tool"]
    assert found == ["f", "g", "h", "i"]


def test_names_of_results() -> None:
    turns = [
        result("b"),  # before its call
        Turn(role="assistant", calls=CALLS),
        Turn(role="tool", call_id="zz", name="known"),
        Turn(role="tool", call_id=""),
    ]
    assert [m["name"] for m in messages(turns) if m["role"] == "tool"] == ["g", "known", ""]


def test_remembered_turns_keep_their_reasoning_and_text() -> None:
    memory = ToolMemory()
    turn = Turn(role="assistant", content="ok", calls=CALLS)
    assert "reasoning_content" not in messages([turn], memory=memory, replay=True)[0]
    memory.remember(("a", "b"), Remembered("<think>hm</think>ok<…>", "hm"))
    plain, replayed = (messages([turn], memory=memory, replay=on)[0] for on in (False, True))
    assert plain["reasoning_content"] == replayed["reasoning_content"] == "hm"
    assert "raw" not in plain
    assert replayed["raw"] == "<think>hm</think>ok<…>"
    assert (
        "raw" not in messages([Turn(role="assistant", content="x")], memory=memory, replay=True)[0]
    )


def test_memory_answers_only_for_whole_turns() -> None:
    memory = ToolMemory()
    turn = Remembered("text")
    memory.remember(("a", "b"), turn)
    memory.remember(("c",), Remembered("other"))
    memory.remember(("", "d"), Remembered("empty id"))
    memory.remember((), Remembered("no id"))
    assert memory.recall(("a", "b")) is turn
    assert memory.recall(("b", "a")) is turn
    for ids in [("a",), ("a", "c"), ("a", "b", "c"), ("a", "x"), ("",), ("d",), ()]:
        assert memory.recall(ids) is None
    memory.remember(("b",), Remembered("again"))
    assert memory.recall(("a", "b")) is None
    assert memory.recall(("a",)) is None
    assert memory.recall(("b",)) == Remembered("again")


def test_memory_forgets_the_ids_longest_unused() -> None:
    memory = ToolMemory(max_ids=2)
    for name in "ab":
        memory.remember((name,), Remembered(name))
    memory.recall(("a",))
    memory.remember(("c",), Remembered("c"))
    assert [memory.recall((name,)) is not None for name in "abc"] == [True, False, True]
    assert memory.num_ids == 2


def test_memory_is_bounded_in_bytes() -> None:
    memory = ToolMemory(max_bytes=100)
    memory.remember(("a", "b"), Remembered("x" * 40, "é" * 5))
    assert memory.num_bytes == 52
    memory.remember(("c",), Remembered("y" * 60))
    assert (memory.num_ids, memory.num_bytes) == (1, 61)
    memory.remember(("d",), Remembered("z" * 100))
    assert memory.num_bytes == 61


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3), st.text(max_size=9))
    )
)
def test_memory_counts_what_it_holds(steps: list[tuple[list[str], str]]) -> None:
    memory = ToolMemory(max_ids=4, max_bytes=40)
    for ids, text in steps:
        memory.remember(ids, Remembered(text))
        assert memory.num_ids <= 4
        assert memory.num_bytes <= 40
    for name in "abcdef":
        memory.remember((name,), Remembered(""))
    assert memory.num_bytes == memory.num_ids == 4


def test_templates_without_a_turn_for_tools_get_responses() -> None:
    old = "{% if message['tool_responses'] %}{% set kind = 'tool' %}"
    turns = [
        Turn(role="user", content="?"),
        Turn(role="assistant", calls=CALLS),
        result("b", "2"),
        Turn(role="tool", call_id="a", content=[{"type": "text", "text": "1"}]),
        Turn(role="assistant", content="ok"),
        Turn(role="user", content="!"),
        result("zz", "3"),
    ]
    found = messages(turns, template_source=old)
    assert [(m["role"], m.get("tool_responses")) for m in found] == [
        ("user", None),
        ("assistant", [{"name": "f", "response": "1"}, {"name": "g", "response": "2"}]),
        ("assistant", None),
        ("user", None),
        ("assistant", [{"name": "", "response": "3"}]),
    ]
    for new in (
        "",
        "tool_responses {% if message['role'] == 'tool' %}",
        "tool_responses 'tool' != m.role",
    ):
        assert messages(turns, template_source=new) == messages(turns)
