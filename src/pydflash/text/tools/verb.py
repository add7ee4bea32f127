"""`call:NAME{relaxed json}`: what Gemma writes, in its own tags or plainly in the text.

The name is what follows the last colon. Inside the tags a bad call is dropped; in plain text it was
none, and stays text.
"""

from pydflash.text.calls import Calls
from pydflash.text.relaxed import MalformedError, read_object
from pydflash.text.source import Reading, Source, Words

OPEN_PLAIN = "call:"
OPEN_TAGGED = "<|tool_call>"
STRAYS = ("<tool_call|>",)
_END = Words("<tool_call|>")
_VERB = Words(OPEN_PLAIN)
_NAME_SIGNS = frozenset("_-.:")


def read_plain(source: Source, calls: Calls, _opener: str = OPEN_PLAIN) -> Reading[str | None]:
    """After `call:` in plain text; None if that is no call."""
    name = yield from _name(source)
    yield from source.spaces()
    if name not in calls.tools or (yield from source.take()) != "{":
        return None
    try:
        arguments = yield from read_object(source)
    except MalformedError:
        return None
    calls.whole(name, arguments)
    return ""


def read_tagged(source: Source, calls: Calls, _opener: str = OPEN_TAGGED) -> Reading[str]:
    """After `<|tool_call>`, up to and with `<tool_call|>`."""
    yield from source.spaces()
    yield from source.match(_VERB)
    name = yield from _name(source)
    yield from source.spaces()
    if (yield from source.peek()) == "{":
        yield from source.take()
        try:
            calls.whole(name, (yield from read_object(source)))
        except MalformedError as error:
            calls.fail(f"the arguments of {name!r} are malformed: {error}")
    else:
        calls.fail(f"the call of {name!r} has no arguments")
    _, tag = yield from source.until(_END)
    return tag


def _name(source: Source) -> Reading[str]:
    chars: list[str] = []
    while (char := (yield from source.peek())) and (char.isalnum() or char in _NAME_SIGNS):
        chars.append((yield from source.take()))
    return "".join(chars).rsplit(":", 1)[-1]
