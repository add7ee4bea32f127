"""Values that a model wrote as plain text, typed by the tool's JSON schema."""

from typing import Any

from pydflash.text import relaxed
from pydflash.text.json_text import NULL, parse_json
from pydflash.text.toolset import Schema


def trim(text: str) -> str:
    """The text without one newline in front and one at the end."""
    return text.removeprefix("\n").removesuffix("\n")


def is_text(schema: Schema | None) -> bool:
    """Is a value of this schema the text itself? So it is where nothing is declared."""
    if not schema:
        return True
    kinds = _kinds(schema)
    if kinds:
        return kinds <= {"string", "null"}
    choices = schema.get("enum")
    return isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)


def may_be_text(schema: Schema | None) -> bool:
    """Can a value of this schema be the text itself, for want of another meaning?"""
    return is_text(schema) or not (kinds := _kinds(schema or {})) or "string" in kinds


def typed(text: str, schema: Schema | None) -> Any:
    """The value that the text means under the schema; the text itself if it means nothing else.

    One newline at either side is not part of it. `null` is null whatever the schema says.
    """
    text = trim(text)
    bare = text.strip()
    if bare == NULL:
        return None
    if schema is None or is_text(schema):
        return text
    kinds = _kinds(schema)
    for kind, read in _READERS.items():
        if kind in kinds:
            value = read(bare)
            if value is not None:
                return value
    if not kinds and bare[:1] in ("{", "["):
        value = parse_json(bare)
        return text if value is None else value
    return text


def _kinds(schema: Schema) -> set[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, list | tuple):
        return {str(kind) for kind in kinds}
    for union in ("anyOf", "oneOf"):
        members = schema.get(union)
        if isinstance(members, list):
            return set().union(*(_kinds(member) for member in members if isinstance(member, dict)))
    if "properties" in schema:
        return {"object"}
    return {"array"} if "items" in schema else set()


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _number(text: str) -> int | float | None:
    value = parse_json(text)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(text: str) -> int | float | None:
    value = _number(text)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _object(text: str) -> dict[str, Any] | None:
    value = _literal(text)
    return value if isinstance(value, dict) else None


def _array(text: str) -> list[Any] | None:
    value = _literal(text)
    return value if isinstance(value, list) else None


def _literal(text: str) -> Any:
    """JSON, or the same in Python's spelling, as models that read much Python write it."""
    value = parse_json(text)
    if value is not None:
        return value
    try:
        return relaxed.parse(text)
    except relaxed.MalformedError:
        return None


_READERS = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _object,
    "array": _array,
}
