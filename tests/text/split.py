"""Shared by the tests of the splitter: tools, and runs over every way of cutting a text in two."""

from pydflash.text.channels import ChannelSplitter
from pydflash.text.formats import QWEN, Format
from pydflash.text.stream import (
    Content,
    Reasoning,
    StreamEvent,
    ToolCallArguments,
    ToolCallEnd,
    fold,
    merge,
)
from pydflash.text.toolset import Tool, Toolset

WEATHER = Tool(
    name="get_weather",
    description="The weather in a city.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "share": {"type": "number"},
            "metric": {"type": "boolean"},
            "unit": {"enum": ["C", "F", "1"]},
            "where": {"type": "object"},
            "hours": {"type": ["array", "null"]},
        },
        "required": ["city"],
    },
)
NOW = Tool(name="now")
SNAKE = Tool(name="read_file-v2", parameters={"properties": {"path": {"type": "string"}}})
TOOLS = Toolset([WEATHER, NOW, SNAKE])


def events(
    pieces: list[str],
    form: Format = QWEN,
    tools: Toolset | None = TOOLS,
    *,
    starts_in_reasoning: bool = False,
    stops: tuple[str, ...] = (),
) -> list[StreamEvent]:
    """The merged events of a text in these pieces; checks that deltas sum to each call's arguments."""
    splitter = ChannelSplitter(
        form, tools=tools, starts_in_reasoning=starts_in_reasoning, stops=stops
    )
    found: list[StreamEvent] = []
    for piece in pieces:
        found += splitter.push(piece)
    found += splitter.finish()
    text = "".join(pieces)
    for event in found:
        if isinstance(event, Content | Reasoning):
            assert text[event.at :].startswith(event.text)
        if isinstance(event, ToolCallEnd):
            assert event.arguments == "".join(
                delta.json_delta
                for delta in found
                if isinstance(delta, ToolCallArguments) and delta.index == event.index
            )
    assert splitter.num_calls == len(fold(found).calls)
    return merge(found)


def everywhere(text: str, form: Format = QWEN, **options: object) -> list[StreamEvent]:
    """The events of the text, after checking that they are the same however it is cut in two."""
    whole = events([text], form, **options)  # type: ignore[arg-type]
    assert events(list(text), form, **options) == whole  # type: ignore[arg-type]
    for at in range(1, len(text)):
        assert events([text[:at], text[at:]], form, **options) == whole, at  # type: ignore[arg-type]
    return whole
