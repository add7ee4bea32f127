"""Raw JSON text read as it comes: copied on, character for character, up to where its value ends.

Only the shape is followed (strings and brackets): whether it is JSON is for the caller to see. Raw
control characters inside strings, a common slip of models, are escaped on the way.
"""

import json
import re
from collections.abc import Callable

from pydflash.text.source import Reading, Source, Words

_IN_STRING = Words('"', "\\")
_STRUCTURE = Words('"', "{", "}", "[", "]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_AFTER_SCALAR = frozenset(",}]<")

Write = Callable[[str], None]


def copy_value(source: Source, write: Write) -> Reading[bool]:
    """Copy one value that starts here. False if the text ended inside it or nothing was there."""
    first = yield from source.peek()
    if first in ("{", "["):
        write((yield from source.take()))
        return (yield from copy_rest(source, write))
    if first == '"':
        write((yield from source.take()))
        return (yield from _copy_string(source, write))
    return (yield from _copy_scalar(source, write))


def copy_rest(source: Source, write: Write) -> Reading[bool]:
    """Copy up to the bracket that closes one opened just before. False if the text ended first."""
    depth = 1
    while True:
        text, sign = yield from source.run(_STRUCTURE)
        if not text and not sign:
            return False
        write(text + sign)
        if sign == '"':
            if not (yield from _copy_string(source, write)):
                return False
        elif sign:
            depth += 1 if sign in "{[" else -1
            if depth == 0:
                return True


def read_text(source: Source) -> Reading[str | None]:
    """The string that starts here, decoded; None (and what was read is gone) if it is not one."""
    parts: list[str] = []
    if (yield from source.peek()) != '"' or not (yield from copy_value(source, parts.append)):
        return None
    try:
        text = json.loads("".join(parts))
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _copy_string(source: Source, write: Write) -> Reading[bool]:
    while True:
        text, sign = yield from source.run(_IN_STRING)
        if not text and not sign:
            return False
        write(_CONTROL.sub(_escape, text) + sign)
        if sign == '"':
            return True
        if sign:
            char = yield from source.take()
            if not char:
                return False
            write(char)


def _copy_scalar(source: Source, write: Write) -> Reading[bool]:
    found = False
    while (char := (yield from source.peek())) and char not in _AFTER_SCALAR:
        if char.isspace():
            break
        write((yield from source.take()))
        found = True
    return found


def _escape(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1]
