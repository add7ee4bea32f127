"""DeepSeek's DSML: `<｜DSML｜invoke name="N">` with `<｜DSML｜parameter name="K" string="true">`.

`string="true"` is the text as it stands, `"false"` a JSON value.
"""

import re

from pydflash.text.calls import Call, Calls
from pydflash.text.json_text import NULL, parse_json
from pydflash.text.source import Reading, Source, Words
from pydflash.text.tagged import read_string
from pydflash.text.values import typed

OPEN = ("<｜DSML｜tool_calls>", "<｜DSML｜function_calls>")
_INVOKE, _INVOKE_END = "<｜DSML｜invoke", "</｜DSML｜invoke>"
_PARAMETER, _PARAMETER_END = "<｜DSML｜parameter", "</｜DSML｜parameter>"
_BLOCK_ENDS = ("</｜DSML｜tool_calls>", "</｜DSML｜function_calls>")
STRAYS = (_INVOKE, _INVOKE_END, _PARAMETER, _PARAMETER_END, *_BLOCK_ENDS)
_IN_BLOCK = Words(_INVOKE, *_BLOCK_ENDS)
_IN_INVOKE = Words(_PARAMETER, _INVOKE_END, *_BLOCK_ENDS)
_END_VALUE = Words(_PARAMETER_END, _INVOKE_END, *_BLOCK_ENDS)
_END_TAG = Words(">")
_NAME = re.compile(r'\bname\s*=\s*"([^"]*)"')
_STRING = re.compile(r'\bstring\s*=\s*"true"')


def read_block(source: Source, calls: Calls, _opener: str = OPEN[0]) -> Reading[str]:
    """The rest of a block of calls, its closer too. Returns the closer, "" if the text ended."""
    while True:
        _, tag = yield from source.until(_IN_BLOCK)
        if tag == _INVOKE:
            tag = yield from _read_invoke(source, calls)
        if tag in ("", *_BLOCK_ENDS):
            return tag


def _read_invoke(source: Source, calls: Calls) -> Reading[str]:
    head, sign = yield from source.until(_END_TAG)
    name = _NAME.search(head)
    if not sign or name is None:
        calls.fail("an invoke has no name")
        return _INVOKE_END if sign else ""
    call = calls.open(name.group(1))
    while True:
        _, tag = yield from source.until(_IN_INVOKE)
        if tag != _PARAMETER:
            call.end(complete=bool(tag) or call.has_required)
            return tag
        tag = yield from _read_parameter(source, call)
        if tag != _PARAMETER_END:
            call.end(complete=bool(tag))
            return tag


def _read_parameter(source: Source, call: Call) -> Reading[str]:
    head, sign = yield from source.until(_END_TAG)
    name = _NAME.search(head)
    key = name.group(1) if name else ""
    if not sign:
        return ""
    if _STRING.search(head):
        return (yield from read_string(source, call, key, _END_VALUE, verbatim=True))
    text, tag = yield from source.until(_END_VALUE)
    value = parse_json(text)
    if value is None and text.strip() != NULL:
        value = typed(text, call.schema_of(key))
    call.value(key, value)
    return tag
