"""Tool calls on their way out: readers of every form write them here, as events.

Invariant: only calls of declared tools become events; every call begun is ended.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydflash.text.json_text import dump, parse_object
from pydflash.text.stream import StreamEvent, ToolCallArguments, ToolCallEnd, ToolCallStart
from pydflash.text.toolset import Schema, Tool, Toolset


class Call:
    """One call: its arguments as raw JSON text, or key by key. Silent if the tool is not declared."""

    def __init__(
        self, name: str, tool: Tool | None, index: int, emit: Callable[[StreamEvent], None]
    ) -> None:
        self.name = name
        self.tool = tool
        self._index = index
        self._emit = emit
        self._parts: list[str] = []
        self._keys: set[str] = set()
        if tool is not None:
            emit(ToolCallStart(index, name))

    def schema_of(self, key: str) -> Schema | None:
        return None if self.tool is None else self.tool.schema_of(key)

    @property
    def has_required(self) -> bool:
        """Have all required parameters been written?"""
        return self.tool is None or self._keys.issuperset(self.tool.required)

    def raw(self, text: str) -> None:
        """More of the arguments' JSON text."""
        if text:
            self._parts.append(text)
            if self.tool is not None:
                self._emit(ToolCallArguments(self._index, text))

    def key(self, key: str) -> bool:
        """Begin a value, to be written by `raw`. False if the key has come before: skip the value."""
        if key in self._keys:
            return False
        self.raw(", " if self._keys else "{")
        self._keys.add(key)
        self.raw(f"{dump(key)}: ")
        return True

    def value(self, key: str, value: object) -> None:
        """A whole value; the first of a key counts."""
        if self.key(key):
            self.raw(dump(value))

    def end(self, *, complete: bool = True) -> None:
        """End a call written key by key. One that broke off stays open, lest it be run as a whole one."""
        if complete or not self._keys:
            self.raw("}" if self._keys else "{}")
        self._finish(complete)

    def end_raw(self, *, complete: bool = True) -> None:
        """End a call written as raw text; without any it has no arguments."""
        if not self._parts:
            self.raw("{}")
        self._finish(complete and parse_object("".join(self._parts)) is not None)

    def _finish(self, complete: bool) -> None:
        if self.tool is not None:
            arguments = "".join(self._parts)
            self._emit(ToolCallEnd(self._index, self.name, arguments, complete))


class Calls:
    """All calls of an answer. `failures` are the reasons why text in the form of a call is none."""

    def __init__(self, tools: Toolset, emit: Callable[[StreamEvent], None]) -> None:
        self.tools = tools
        self.count = 0
        self.failures: list[str] = []
        self._emit = emit

    def open(self, name: str) -> Call:
        """Begin a call. The caller must end it."""
        name = name.strip()
        tool = self.tools.get(name)
        if tool is None:
            self.fail(f"no tool is named {name!r}")
        call = Call(name, tool, self.count, self._emit)
        self.count += tool is not None
        return call

    def whole(self, name: str, arguments: Mapping[str, Any]) -> None:
        """A call whose arguments are known at once."""
        call = self.open(name)
        call.raw(dump(dict(arguments)))
        call.end_raw()

    def fail(self, reason: str) -> None:
        self.failures.append(reason)


def escaped(text: str) -> str:
    """The text as the inside of a JSON string. Pieces escaped apart join to the whole escaped."""
    return dump(text)[1:-1]
