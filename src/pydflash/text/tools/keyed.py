"""`NAME<arg_key>K</arg_key><arg_value>V</arg_value>…`: Laguna, GLM and Bailing, in a block or bare."""

from pydflash.text.calls import Call, Calls
from pydflash.text.source import Reading, Source, Words
from pydflash.text.tagged import read_value

KEY = "<arg_key>"
STRAYS = ("</arg_key>", "<arg_value>", "</arg_value>", KEY)
_KEY = Words(KEY)
_END_KEY = Words("</arg_key>", "</tool_call>")
_VALUE = Words("<arg_value>")
_END_VALUE = Words("</arg_value>", KEY, "</tool_call>")
_BLOCK_END = "</tool_call>"


def read_keyed_bare(source: Source, calls: Calls, opener: str) -> Reading[str]:
    """The rest of a call after `NAME<arg_key>`."""
    return (yield from read_keyed(source, calls.open(opener.removesuffix(KEY))))


def read_keyed(source: Source, call: Call) -> Reading[str]:
    """Pairs, the first `<arg_key>` of which is read. Returns `</tool_call>` if it was met, else ""."""
    while True:
        key, tag = yield from source.until(_END_KEY)
        yield from source.spaces()
        if tag != "</arg_key>" or not (yield from source.match(_VALUE)):
            call.end(complete=False)
            return tag if tag == _BLOCK_END else ""
        tag = yield from read_value(source, call, key.strip(), _END_VALUE)
        if not tag:
            call.end(complete=False)
            return ""
        if tag == "</arg_value>":
            yield from source.spaces()
            tag = yield from source.match(_KEY)
        if tag != KEY:
            ended = bool(tag) or bool((yield from source.peek()))
            call.end(complete=ended or call.has_required)
            return tag
