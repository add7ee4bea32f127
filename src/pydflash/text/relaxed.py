"""Relaxed JSON objects, as models write them after `call:NAME`: bare keys, any kind of quotes.

Strings stand in "…", '…', `…` or Gemma's <|"|>…<|"|>. Anything else that is not JSON is refused.
"""

import json
import re
from typing import Any

from pydflash.text.json_text import parse_json
from pydflash.text.source import Reading, Source, Words, words_of

_MOST_DEPTH = 64
_GEMMA_QUOTE = '<|"|>'
_QUOTES = Words('"', "'", "`", _GEMMA_QUOTE)
_WORD_ENDS = frozenset(",:=()}{][<\"'`")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_ESCAPABLE = "\"'`\\/"
_KEY = re.compile(r"[\w$][\w$.-]*")
_CONSTANTS = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}


class MalformedError(ValueError):
    """The text is no relaxed JSON object."""


def read_object(
    source: Source, depth: int = 0, *, sign: str = ":", closer: str = "}"
) -> Reading[dict[str, Any]]:
    """The object whose bracket was just read, up to its closer. Raises MalformedError."""
    found: dict[str, Any] = {}
    while True:
        yield from source.spaces()
        if (yield from source.peek()) == closer:
            yield from source.take()
            return found
        key = yield from _key(source)
        yield from _expect(source, sign)
        found[key] = yield from _value(source, depth + 1)
        if (yield from _ends(source, closer)):
            return found


def parse(text: str) -> Any:
    """The value that the whole text is. Raises MalformedError."""
    source = Source()
    source.feed(text)
    source.end()
    reader = _value(source, 0)
    try:
        next(reader)
    except StopIteration as done:
        if source.offset < len(text.rstrip()):
            raise MalformedError("text follows the value") from None
        return done.value
    raise AssertionError("a reader waits at the end of its text")


def _array(source: Source, depth: int) -> Reading[list[Any]]:
    found: list[Any] = []
    while True:
        yield from source.spaces()
        if (yield from source.peek()) == "]":
            yield from source.take()
            return found
        found.append((yield from _value(source, depth + 1)))
        if (yield from _ends(source, "]")):
            return found


def _value(source: Source, depth: int) -> Reading[Any]:
    if depth > _MOST_DEPTH:
        raise MalformedError("it is nested too deeply")
    yield from source.spaces()
    quote = yield from source.match(_QUOTES)
    if quote:
        return (yield from _string(source, quote))
    first = yield from source.peek()
    if first == "{":
        yield from source.take()
        return (yield from read_object(source, depth))
    if first == "[":
        yield from source.take()
        return (yield from _array(source, depth))
    word = yield from _word(source)
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    number = parse_json(word)
    if isinstance(number, int | float):
        return number
    raise MalformedError(f"{word!r} is no value")


def _key(source: Source) -> Reading[str]:
    quote = yield from source.match(_QUOTES)
    if quote:
        return (yield from _string(source, quote))
    word = yield from _word(source)
    if not _KEY.fullmatch(word):
        raise MalformedError(f"{word!r} is no key")
    return word


def _string(source: Source, quote: str) -> Reading[str]:
    if quote == _GEMMA_QUOTE:
        text, end = yield from source.until(words_of(quote))
        if not end:
            raise MalformedError("a string does not end")
        return text
    parts: list[str] = []
    words = words_of(quote, "\\")
    while True:
        text, word = yield from source.until(words)
        parts.append(text)
        if word == quote:
            return "".join(parts)
        if not word:
            raise MalformedError("a string does not end")
        parts.append((yield from _escape(source)))


def _escape(source: Source) -> Reading[str]:
    char = yield from source.take()
    if char != "u":
        # What is no escape was not meant as one: `\d` in a pattern.
        return _ESCAPES.get(char, char if char in _ESCAPABLE else "\\" + char)
    unit = yield from _code_unit(source)
    if "\ud800" <= unit <= "\udbff" and (yield from source.match(words_of("\\u"))):
        low = yield from _code_unit(source)
        return str(json.loads(f'"{_hex(unit)}{_hex(low)}"'))
    return unit


def _code_unit(source: Source) -> Reading[str]:
    digits = ""
    while len(digits) < 4:
        char = yield from source.take()
        if char not in "0123456789abcdefABCDEF" or not char:
            raise MalformedError("an escape has a bad digit")
        digits += char
    return chr(int(digits, 16))


def _hex(unit: str) -> str:
    return f"\\u{ord(unit):04x}"


def _word(source: Source) -> Reading[str]:
    chars: list[str] = []
    while (char := (yield from source.peek())) and char not in _WORD_ENDS and not char.isspace():
        chars.append((yield from source.take()))
    return "".join(chars)


def _expect(source: Source, sign: str) -> Reading[None]:
    yield from source.spaces()
    if (yield from source.take()) != sign:
        raise MalformedError(f"{sign!r} is missing")


def _ends(source: Source, closer: str) -> Reading[bool]:
    """After a member: is this the closer (True) or a comma (False)?"""
    yield from source.spaces()
    char = yield from source.take()
    if char not in (closer, ","):
        raise MalformedError(f"{closer!r} is missing")
    return char == closer
