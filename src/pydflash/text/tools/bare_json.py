"""A call without any tags: the content begins with a JSON object that is one.

Either `{"name": N, "arguments": {…}}` with the name of a declared tool, or, when a single tool is
declared, the whole answer is one object that fits the tool's parameters.
"""

from collections.abc import Mapping
from typing import Any

from pydflash.text.calls import Calls
from pydflash.text.json_text import dump, parse_object
from pydflash.text.rawjson import copy_rest, read_text
from pydflash.text.source import Reading, Source
from pydflash.text.toolset import Tool, Toolset

OPEN = "{"
_CALL_KEYS = frozenset(("name", "function", "arguments", "parameters", "type", "id"))


def read_bare(source: Source, calls: Calls, _opener: str = OPEN) -> Reading[str | None]:
    """The rest of an object after its `{`; None if it is no call and therefore plain content.

    That is found out at the first key if it is one that no call has; else the object is held back.
    """
    only = next(iter(calls.tools)) if len(calls.tools) == 1 else None
    parts = [OPEN, (yield from source.spaces())]
    if (yield from source.peek()) != "}":
        key = yield from read_text(source)
        if key is None or not (key in _CALL_KEYS or (only is not None and key in only.properties)):
            return None
        parts.append(dump(key))
    if not (yield from copy_rest(source, parts.append)):
        return None
    found = parse_object("".join(parts))
    if found is None:
        return None
    named = named_call(found, calls.tools)
    if named is not None:
        calls.whole(*named)
        return ""
    if only is None or not fits(found, only):
        return None
    yield from source.spaces()
    if (yield from source.peek()):
        return None
    calls.whole(only.name, found)
    return ""


def named_call(found: Mapping[str, Any], tools: Toolset) -> tuple[str, Mapping[str, Any]] | None:
    """(name, arguments) if the object is a call of a declared tool."""
    inner = found.get("function")
    if isinstance(inner, Mapping):
        return named_call(inner, tools)
    name = found.get("name", inner)
    arguments = found.get("arguments", found.get("parameters"))
    if isinstance(arguments, str):
        arguments = parse_object(arguments)
    if isinstance(name, str) and name in tools and isinstance(arguments, Mapping):
        return name, arguments
    return None


def fits(found: Mapping[str, Any], tool: Tool) -> bool:
    """Has the object what the tool requires, and nothing that it does not know?"""
    return all(key in found for key in tool.required) and all(
        key in tool.properties for key in found
    )
