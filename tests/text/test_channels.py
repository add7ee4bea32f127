"""ChannelSplitter: reasoning, stop strings, white space, and that cutting a text changes nothing."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.errors import RequestError
from pydflash.text.channels import ChannelSplitter
from pydflash.text.formats import DEEPSEEK, FORMATS, GEMMA, HERMES, LAGUNA, QWEN, Format, detect
from pydflash.text.openers import STRAYS, openers
from pydflash.text.stream import (
    Content,
    Reasoning,
    ReasoningClosed,
    StreamEvent,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    fold,
    merge,
)
from tests.text.split import TOOLS, events, everywhere

XML = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
GEMMA_OFF = "<|channel>thought\n<channel|>"


def split(text: str, form: Format = QWEN, **options: object) -> tuple[str, str]:
    """(reasoning, content)."""
    whole = fold(everywhere(text, form, **options))
    return whole.reasoning, whole.content


@pytest.mark.parametrize(
    ("text", "starts", "want"),
    [
        ("<think>a</think>b", False, ("a", "b")),
        ("<think>\na b\n</think>\n\nc\n d", False, ("a b", "c\n d")),
        ("\n<think>a</think>b", False, ("a", "b")),
        ("plain text", False, ("", "plain text")),
        ("a</think>b", True, ("a", "b")),
        ("<think>\na</think>b", True, ("a", "b")),
        ("a\n", True, ("a", "")),
        ("<think>a", False, ("a", "")),
        ("<think></think>b", False, ("", "b")),
        ("<think>\n\n</think>\n\nb", False, ("", "b")),
        ("</think>\n\nb", False, ("", "b")),
        ("</think></think> b</think>c", False, ("", "bc")),
        ("<think>a<think>b</think>c", False, ("ab", "c")),
        ("one <think>two</think> three", False, ("two", "onethree")),
        ("1 < 2 </thin <thinking>", False, ("", "1 < 2 </thin <thinking>")),
        ("a </thin b", True, ("a </thin b", "")),
        ("", True, ("", "")),
    ],
)
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_reasoning(text: str, starts: bool, want: tuple[str, str], tools: object) -> None:
    assert split(text, tools=tools, starts_in_reasoning=starts) == want


def test_gemma_names_its_channel() -> None:
    assert split("<|channel>thought\nhm\n<channel|>ok", GEMMA) == ("hm", "ok")
    assert split("thought\nhm<channel|>ok", GEMMA, starts_in_reasoning=True) == ("hm", "ok")
    assert split("thoughtful<channel|>ok", GEMMA, starts_in_reasoning=True) == ("thoughtful", "ok")
    assert split(f"{GEMMA_OFF}ok", GEMMA) == ("", "ok")


def test_closing_is_an_event() -> None:
    assert everywhere("<think>a</think>b") == [Reasoning("a"), ReasoningClosed(), Content("b")]
    assert everywhere("<think>a") == [Reasoning("a")]
    splitter = ChannelSplitter(QWEN, starts_in_reasoning=True)
    assert splitter.in_reasoning
    splitter.push("a</think>")
    assert not splitter.in_reasoning


def test_tools_between_texts() -> None:
    call: list[StreamEvent] = [
        ToolCallStart(0, "now"),
        ToolCallArguments(0, "{}"),
        ToolCallEnd(0, "now", "{}"),
    ]
    assert everywhere(f"<think>a</think>\n\nb \n{XML}\n c \n") == [
        Reasoning("a"),
        ReasoningClosed(),
        Content("b"),
        *call,
        Content("c \n"),
    ]


def test_a_plain_answer_is_not_trimmed() -> None:
    assert split(" a\n\nb \n", tools=None) == ("", " a\n\nb \n")
    assert split(" a\n\nb \n") == ("", " a\n\nb \n")


def test_text_is_held_back_only_for_what_may_come() -> None:
    splitter = ChannelSplitter(QWEN, tools=TOOLS, stops=("###",))
    assert splitter.push("Hello") == [Content("Hello")]
    assert splitter.push(" wor") == [Content(" wor")]
    assert splitter.push("ld <") == [Content("ld")]
    assert splitter.push("3 #") == [Content(" <3 ")]
    assert splitter.push("# a <tool_c") == [Content("## a")]
    assert splitter.push("old") == [Content(" <tool_cold")]
    assert splitter.finish() == []


@pytest.mark.parametrize(
    ("text", "stops", "content", "stop"),
    [
        ("one STOP two", ("STOP",), "one ", "STOP"),
        ("one two", ("STOP",), "one two", None),
        ("a b c", ("c", "b"), "a ", "b"),
        ("a", (), "a", None),
        ("<think>x STOP y</think>a STOP", ("STOP",), "a ", "STOP"),
        (f"a {XML} STOP b", ("STOP",), "a", "STOP"),
        (
            "<function=get_weather><parameter=city>STOP</parameter></function>a",
            ("STOP",),
            "a",
            None,
        ),
        (f"ab{XML}cd", ("bc",), "abcd", None),
        (f"ab{XML}cd", ("b",), "a", "b"),
        ("a\n\nb", ("\n\n",), "a", "\n\n"),
        ("a <now", ("<n",), "a ", "<n"),
        ("a\n", ("\n",), "a", "\n"),
        ("\n\na", ("\n\n",), "", "\n\n"),
        (f"a\n\n{XML}", ("\n\n",), "a", "\n\n"),
    ],
)
def test_stops_see_only_visible_text(
    text: str, stops: tuple[str, ...], content: str, stop: str | None
) -> None:
    assert split(text, stops=stops)[1] == content
    splitter = ChannelSplitter(QWEN, tools=TOOLS, stops=stops)
    splitter.push(text)
    splitter.finish()
    assert splitter.stop == stop
    if stop:
        assert splitter.push("more") == splitter.finish() == []


def test_a_stop_of_white_space_is_seen_at_once() -> None:
    splitter = ChannelSplitter(QWEN, tools=TOOLS, stops=("\n\n",))
    assert splitter.push("a\n\n") == [Content("a")]
    assert splitter.stop == "\n\n"


def test_events_say_where_their_text_stands() -> None:
    found = everywhere("<think>\n a b </think>\n\nc</think>d <tool_call>x</tool_call> e")
    assert [(e.text, e.at) for e in found if isinstance(e, Content | Reasoning)] == [
        ("a b", 9),
        ("c", 23),
        ("d", 32),
        ("e", 59),
    ]


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError):
        ChannelSplitter(QWEN, stops=("",))


@pytest.mark.parametrize(
    ("template", "arch", "want"),
    [
        ("… <function=x> … <tool_call>", "qwen35", QWEN),
        ('{{ "<tool_call>" }}', "qwen3", HERMES),
        ("<tool_call>{{ name }}<arg_key>", "laguna", LAGUNA),
        ("<|tool_call>call:", "gemma4", GEMMA),
        ("<|channel>thought", "other", GEMMA),
        ("<｜DSML｜tool_calls>", "deepseek4", DEEPSEEK),
        (None, "deepseek4", DEEPSEEK),
        (None, "laguna", LAGUNA),
        (None, "gemma4", GEMMA),
        ("{{ messages }}", "llama", QWEN),
        (None, "qwen35moe", QWEN),
    ],
)
def test_detect(template: str | None, arch: str, want: Format) -> None:
    assert detect(template, arch) is want


def test_a_prompt_may_open_reasoning() -> None:
    assert QWEN.opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not QWEN.opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert GEMMA.opens_reasoning("<|turn>model\n<|channel>thought\n")
    assert not GEMMA.opens_reasoning(f"<|turn>model\n{GEMMA_OFF}")


def test_special_tokens_that_are_shown() -> None:
    assert all(QWEN.shows(text) for text in ("<think>", "</think>", "<tool_call>", "｜DSML｜"))
    assert all(GEMMA.shows(text) for text in ("<|channel>", "<channel|>", "<|tool_call>", '<|"|>'))
    assert not any(QWEN.shows(text) for text in ("", "<|im_end|>", "<|endoftext|>", "<s>"))


PARTS = st.sampled_from(
    [
        *(marker for form in FORMATS.values() for marker in (*form.markers, form.label) if marker),
        *openers(TOOLS, bare_keyed=True),
        *STRAYS,
        *("get_weather", "now", "city", "days", "<parameter=", "null", "=", ">", "<", "{", "}"),
        *(
            '"name": ',
            '"arguments": ',
            '"now"',
            '"get_weather"',
            '{"city": "x"}',
            '"',
            "'",
            "\\",
            ":",
        ),
        *('<|"|>', ' name="get_weather"', ' name="city" string="true"', ",", "[", "]", "(", ")"),
        *(" ", "\n", "a", "STOP", "ST", "é", "😀", "3"),
    ]
)
TEXTS = st.lists(PARTS | st.text(max_size=5), max_size=14).map("".join)
FORMS = st.sampled_from(list(FORMATS.values()))


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(ends)]


@given(TEXTS, st.lists(st.integers(0, 500), max_size=5), FORMS, st.booleans(), st.booleans())
@settings(max_examples=500, deadline=None)
def test_any_cutting_gives_the_same_events(
    text: str, places: list[int], form: Format, starts: bool, with_tools: bool
) -> None:
    options = {
        "tools": TOOLS if with_tools else None,
        "starts_in_reasoning": starts,
        "stops": ("STOP",),
    }
    whole = events([text], form, **options)  # type: ignore[arg-type]
    assert events(cut(text, places), form, **options) == whole  # type: ignore[arg-type]
    assert events(list(text), form, **options) == whole  # type: ignore[arg-type]


@given(TEXTS, FORMS)
@settings(max_examples=300, deadline=None)
def test_no_marker_ever_shows(text: str, form: Format) -> None:
    found = events([text], form)
    markers = (*form.markers, *STRAYS, "<tool_call>", "<function=", "<|tool_call>", "<tool_code>")
    for event in found:
        if isinstance(event, Content):
            assert not any(marker in event.text for marker in markers)


@given(st.text(max_size=40), st.lists(st.integers(0, 50), max_size=4))
@settings(max_examples=200, deadline=None)
def test_plain_text_passes_unchanged(text: str, places: list[int]) -> None:
    want = [Content(text)] if text else []
    if "<" not in text:
        assert merge(events(cut(text, places), tools=None)) == want
