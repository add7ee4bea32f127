"""`<function=NAME><parameter=K>V</parameter></function>`: Qwen3.5, Qwen3-Coder and their kin.

Missing closers are made good, by the next tag or by the end of the text. Also read: a JSON object
or Python's `(a=1)` in the place of parameters, and `<NAME>` of a declared tool as the opener.
"""

from pydflash.text import relaxed
from pydflash.text.calls import Call, Calls
from pydflash.text.rawjson import copy_value
from pydflash.text.source import Reading, Source, Words, words_of
from pydflash.text.tagged import read_value

OPEN = "<function="
STRAYS = ("</function>", "</parameter>")
_PARAMETER = "<parameter="
_NEXT = Words("</parameter>", _PARAMETER, "</function>", "</tool_call>")
_END_NAME = Words(">", "(", "\n")
_END_KEY = Words(">", "\n")
_BRACKET = Words(">")
_END = Words("</function>")


def read_function(source: Source, calls: Calls, _opener: str = OPEN) -> Reading[str]:
    """The rest of a call after `<function=`. Returns the tag that ended it, "" if the text did."""
    name, sign = yield from source.until(_END_NAME)
    if not sign:
        calls.fail("the text ended in a tool's name")
        return ""
    if sign == "(":
        return (yield from _read_python(source, calls, name))
    call = calls.open(name)
    yield from source.spaces()
    if (yield from source.peek()) == "{":
        call.end_raw(complete=(yield from copy_value(source, call.raw)))
        _, tag = yield from source.until(_NEXT)
        return tag
    return (yield from _read_parameters(source, call, _NEXT))


def read_named(source: Source, calls: Calls, opener: str) -> Reading[str | None]:
    """After `<NAME>`: a call if a parameter or a closer follows; else None, nothing was meant by it."""
    own = f"</{opener[1:-1]}>"
    yield from source.spaces()
    tag = yield from source.match(words_of(_PARAMETER, own))
    if not tag:
        return None
    call = calls.open(opener[1:-1])
    return (yield from _read_parameters(source, call, words_of(*_NEXT.words, own), tag))


def _read_parameters(source: Source, call: Call, words: Words, tag: str = "") -> Reading[str]:
    """Parameters, the first of which may be opened already, until a tag or the end. Returns the tag."""
    while True:
        if tag in ("", "</parameter>"):
            _, tag = yield from source.until(words)  # text between tags is nobody's
        if tag == "</parameter>":
            continue
        if tag != _PARAMETER:
            call.end(complete=bool(tag) or call.has_required)
            return tag
        key, sign = yield from source.until(_END_KEY)
        if sign:
            tag = yield from read_value(source, call, key.strip(), words)
        if not sign or not tag:
            call.end(complete=False)  # the text ended inside a key or a value
            return ""


def _read_python(source: Source, calls: Calls, name: str) -> Reading[str]:
    try:
        calls.whole(name, (yield from relaxed.read_object(source, sign="=", closer=")")))
    except relaxed.MalformedError as error:
        calls.fail(f"the arguments of {name!r} are malformed: {error}")
        _, tag = yield from source.until(_NEXT)
        return tag
    yield from source.spaces()
    yield from source.match(_BRACKET)
    yield from source.spaces()
    return (yield from source.match(_END))
