"""The tools of a Responses request: functions, tools that take free text, and namespaces of both.

A model knows functions only. A tool that takes text becomes one with the single string `input`, and
a namespace is opened; `Declared` remembers what the client calls them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydflash.errors import RequestError
from pydflash.server.chat import tool_choice
from pydflash.service.chat import ToolChoice
from pydflash.text.toolset import Toolset


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """`custom`: names of the tools that take text. `namespaces`: of the tools that are in one."""

    toolset: Toolset
    custom: frozenset[str] = frozenset()
    namespaces: Mapping[str, str] = field(default_factory=dict)


def declared(items: Sequence[Mapping[str, Any]]) -> Declared:
    """From `tools`. Raises RequestError with the path of what is wrong."""
    functions: list[Any] = []
    custom: set[str] = set()
    namespaces: dict[str, str] = {}
    for at, (item, namespace) in enumerate(_opened(items)):
        if namespace is not None and isinstance(item.get("name"), str):
            namespaces[item["name"]] = namespace
        if item.get("type") == "custom":
            name = item.get("name")
            if not isinstance(name, str) or not name:
                raise RequestError(f"tools[{at}].name must be a non-empty string", param="tools")
            custom.add(name)
            item = _as_function(item)
        functions.append(item)
    return Declared(
        toolset=Toolset.parse(functions), custom=frozenset(custom), namespaces=namespaces
    )


def choice_of(
    choice: str | Mapping[str, Any] | None, tools: Declared, *, parallel: bool | None
) -> tuple[ToolChoice, Declared]:
    """The choice, and the tools that it leaves."""
    match choice:
        case {"type": "custom", "name": str(name)}:
            choice = {"type": "function", "name": name}
        case {"type": "allowed_tools", "tools": list(allowed), **rest}:
            names = [item.get("name") for item in allowed if isinstance(item, Mapping)]
            left = Declared(
                toolset=Toolset([tool for tool in tools.toolset if tool.name in names]),
                custom=tools.custom,
                namespaces=tools.namespaces,
            )
            tools = left
            choice = "required" if rest.get("mode") == "required" else "auto"
    return tool_choice(choice, tools.toolset, parallel), tools


def _opened(items: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str | None]]:
    """Each tool with its namespace. A tool of no namespace counts before one of the same name."""
    plain: list[tuple[Mapping[str, Any], str | None]] = []
    spaced: list[tuple[Mapping[str, Any], str | None]] = []
    for item in items:
        inner = item.get("tools")
        if item.get("type") == "namespace" and isinstance(inner, list):
            spaced += [(tool, str(item.get("name"))) for tool in inner if isinstance(tool, Mapping)]
        else:
            plain.append((item, None))
    names = [item.get("name") for item, _ in plain]
    return plain + [(item, space) for item, space in spaced if item.get("name") not in names]


def _as_function(item: Mapping[str, Any]) -> dict[str, Any]:
    description = str(item.get("description") or "")
    form = item.get("format")
    if isinstance(form, Mapping) and isinstance(form.get("definition"), str):
        description += f"\n\nThe input must match this grammar:\n{form['definition']}"
    return {
        "type": "function",
        "name": item["name"],
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        },
    }
