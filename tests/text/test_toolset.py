"""Toolset: the three APIs' declarations are one, and what is wrong is named by its path."""

import pytest

from pydflash.errors import RequestError
from pydflash.text.toolset import Tool, Toolset

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CHAT = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    "item",
    [
        CHAT,
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
        {"name": "f", "description": "d", "input_schema": SCHEMA},
        {"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA},
    ],
)
def test_every_api_says_the_same(item: dict[str, object]) -> None:
    tools = Toolset.parse([item])
    assert tools.for_template() == [CHAT]
    tool = tools.get("f")
    assert tool is not None
    assert (tool.required, tool.schema_of("a"), tool.schema_of("b")) == (
        ("a",),
        {"type": "string"},
        None,
    )


def test_other_types_are_ignored_and_named() -> None:
    tools = Toolset.parse([{"type": "web_search"}, CHAT, {"type": "custom", "name": "patch"}])
    assert tools.names == ("f",)
    assert tools.ignored == ("web_search", "custom")
    assert "f" in tools
    assert len(Toolset.parse(None)) == 0
    assert not Toolset()


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ("f", "tools[0]"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "function", "function": 3}, "tools[0].function"),
        ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"),
        ({"name": "f", "input_schema": []}, "tools[0].input_schema"),
        (
            {"type": "function", "function": {"name": "f", "parameters": "x"}},
            "tools[0].function.parameters",
        ),
        ({"name": "f", "description": 1}, "tools[0].description"),
    ],
)
def test_what_is_wrong_is_named(item: object, path: str) -> None:
    with pytest.raises(RequestError) as caught:
        Toolset.parse([item])
    assert caught.value.param == path
    assert path in str(caught.value)


def test_a_schema_of_odd_shape_declares_nothing() -> None:
    tool = Tool(name="f", parameters={"properties": [], "required": "a"})
    assert (tool.properties, tool.required, tool.schema_of("a")) == ({}, (), None)
    assert Toolset([Tool(name="f")]).for_template()[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {},
    }
