"""`{"name": N, "arguments": {…}}` inside `<tool_call>` or `<tool_code>`: Hermes, Qwen2.5, Qwen3.

The arguments are passed on as they come when the name has come before them.
"""

import json
from dataclasses import dataclass, field

from pydflash.text.calls import Call, Calls
from pydflash.text.json_text import NULL, parse_object
from pydflash.text.rawjson import copy_value, read_text
from pydflash.text.source import Reading, Source, Words

OPEN = "<tool_code>"
STRAYS = ("</tool_code>",)
ARGUMENT_KEYS = frozenset(("arguments", "parameters"))
_END = Words("</tool_code>")
_COLON = Words(":")


@dataclass(slots=True)
class _Found:
    """What the object has said so far."""

    name: str | None = None
    raw: list[str] = field(default_factory=list)
    call: Call | None = None


def read_tool_code(source: Source, calls: Calls, _opener: str = OPEN) -> Reading[str]:
    """The rest of `<tool_code>{…}</tool_code>`."""
    yield from source.spaces()
    if (yield from source.peek()) == "{":
        yield from read_call(source, calls)
    else:
        calls.fail("a tool_code block holds no JSON object")
    _, tag = yield from source.until(_END)
    return tag


def read_call(source: Source, calls: Calls) -> Reading[bool]:
    """One call object, whose `{` comes next. False if it is not a whole JSON object."""
    found = _Found()
    sound = yield from _read_members(source, calls, found)
    if found.call is not None:
        return sound
    if not sound:
        calls.fail("the call is not a whole JSON object")
    elif found.name is None:
        calls.fail("the call has no name")
    else:
        arguments = _arguments("".join(found.raw))
        if arguments is None:
            calls.fail(f"the arguments of {found.name!r} are not an object")
        else:
            call = calls.open(found.name)
            call.raw(arguments)
            call.end_raw()
    return sound


def _read_members(source: Source, calls: Calls, found: _Found) -> Reading[bool]:
    """The members of an object. False if it breaks off or is not JSON."""
    yield from source.take()
    while True:
        yield from source.spaces()
        sign = yield from source.peek()
        if sign in ("}", ","):
            yield from source.take()
            if sign == "}":
                return True
            continue
        key = yield from read_text(source)
        yield from source.spaces()
        if key is None or not (yield from source.match(_COLON)):
            return False
        yield from source.spaces()
        if not (yield from _read_member(source, calls, found, key)):
            return False


def _read_member(source: Source, calls: Calls, found: _Found, key: str) -> Reading[bool]:
    first = yield from source.peek()
    if key in ("name", "function") and first == '"':
        found.name = yield from read_text(source)
        return found.name is not None
    if key == "function" and first == "{":
        return (yield from _read_members(source, calls, found))
    if key not in ARGUMENT_KEYS:
        return (yield from copy_value(source, _nowhere))
    if first == "{" and found.name is not None and found.call is None:
        found.call = calls.open(found.name)
        whole = yield from copy_value(source, found.call.raw)
        found.call.end_raw(complete=whole)
        return whole
    found.raw.clear()
    return (yield from copy_value(source, found.raw.append))


def _arguments(raw: str) -> str | None:
    """The object's text: as it stands, out of a JSON string, or empty where nothing or null stands."""
    if raw.startswith('"'):
        try:
            raw = str(json.loads(raw)).strip()
        except ValueError:
            return None
    if raw in ("", NULL):
        return "{}"
    return None if parse_object(raw) is None else raw


def _nowhere(text: str) -> None:
    """A value that nobody wants."""
