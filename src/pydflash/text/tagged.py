"""A parameter's value between tags: strings flow out as they come, other types when they are whole."""

from pydflash.text.calls import Call, escaped
from pydflash.text.json_text import NULL
from pydflash.text.source import Reading, Source, Words
from pydflash.text.values import is_text, typed

_MOST_SPACES = 8  # around a null; with more it is a string that need not be held back longer


def read_value(source: Source, call: Call, key: str, closers: Words) -> Reading[str]:
    """Read a value up to one of the closers into the call; returns that closer ("" at the end)."""
    schema = call.schema_of(key)
    if is_text(schema):
        return (yield from read_string(source, call, key, closers))
    text, closer = yield from source.until(closers)
    call.value(key, typed(text, schema))
    return closer


def read_string(
    source: Source, call: Call, key: str, closers: Words, *, verbatim: bool = False
) -> Reading[str]:
    """Write a JSON string from the text up to a closer, as it comes; returns the closer.

    One newline at either side is not part of it, and the text `null` is null, unless `verbatim`.
    """
    if not call.key(key):
        _, closer = yield from source.until(closers)
        return closer
    held = ""  # may be the newline before the closer, or the word null
    opened = begun = False
    while True:
        text, closer = yield from source.run(closers)
        over = bool(closer) or not text
        if text and not begun:
            begun = True
            text = text if verbatim else text.removeprefix("\n")
        held += text
        if over:
            if not verbatim:
                if not opened and held.strip() == NULL and _maybe_null(held):
                    call.raw(NULL)
                    return closer
                held = held.removesuffix("\n")
            call.raw(("" if opened else '"') + escaped(held) + '"')
            return closer
        if not verbatim and not opened and _maybe_null(held):
            continue
        keep = int(held.endswith("\n") and not verbatim)
        sure, held = held[: len(held) - keep], held[len(held) - keep :]
        if sure:
            call.raw(("" if opened else '"') + escaped(sure))
            opened = True


def _maybe_null(text: str) -> bool:
    bare = text.strip()
    return len(text) - len(bare) <= _MOST_SPACES and NULL.startswith(bare)
