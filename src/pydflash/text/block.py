"""The inside of `<tool_call>…</tool_call>`: several families use these tags, each its own body."""

from pydflash.text.calls import Calls
from pydflash.text.rawjson import copy_rest
from pydflash.text.source import Reading, Source, Words, words_of
from pydflash.text.tools import json_call, keyed, xml_function

OPEN = "<tool_call>"
END = "</tool_call>"
_TAGS = (END, OPEN, xml_function.OPEN)
_AFTER_NAME = Words(keyed.KEY, END, OPEN, "{")
_END = Words(END)


def read_block(source: Source, calls: Calls, _opener: str = OPEN) -> Reading[str]:
    """The rest of a block, its closer too.

    A missing closer is made good by the end of the text, or by other text after a whole call.
    """
    before = calls.count
    named = {f"<{name}>" for name in calls.tools.names}
    tags = words_of(*_TAGS, *named)
    while True:
        yield from source.spaces()
        first = yield from source.peek()
        if not first:
            return ""
        if first in "[,]":  # some write a list of calls
            yield from source.take()
            continue
        if first == "{":
            if not (yield from json_call.read_call(source, calls)):
                _, tag = yield from source.until(_END)
                return tag
            continue
        tag = yield from source.match(tags)
        end: str | None = tag
        if tag == xml_function.OPEN:
            end = yield from xml_function.read_function(source, calls)
        elif tag in named:
            end = yield from xml_function.read_named(source, calls, tag)
        elif not tag and calls.count > before:
            return ""
        elif not tag:
            end = yield from _read_named(source, calls)
        if end == END:
            return END


def _read_named(source: Source, calls: Calls) -> Reading[str]:
    """A body that begins with the tool's name: keyed arguments, a JSON object, or nothing more."""
    text, tag = yield from source.until(_AFTER_NAME)
    name = text.strip()
    if tag == keyed.KEY:
        return (yield from keyed.read_keyed(source, calls.open(name)))
    if name not in calls.tools:
        calls.fail(f"{name[:80]!r} is no call")
        return tag if tag == END else (yield from source.until(_END))[1]
    call = calls.open(name)
    if tag == "{":
        call.raw(tag)
        call.end_raw(complete=(yield from copy_rest(source, call.raw)))
    else:
        call.end(complete=bool(tag))
    return tag
