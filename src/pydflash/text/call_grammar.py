"""Call grammars: what `tool_choice` required or named makes of the declared tools, in a family's own form.

Invariant: what a grammar here lets through, the readers of `text/tools` read as whole calls of declared tools
with all required parameters, each of its schema (short of free text that holds another of the form's tags).
Parameters come in the order they are declared in.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydflash.errors import RequestError
from pydflash.text.formats import CallForm
from pydflash.text.lark import Cut, literal, until
from pydflash.text.toolset import Schema, Tool, Toolset
from pydflash.text.values import is_text, may_be_text

_KEY = re.compile(r"[\w$][\w$.-]*")
_QUOTE = '<|"|>'


def call_grammar(
    form: CallForm, tools: Toolset, cut: Cut, *, only: str | None = None, several: bool = True
) -> str:
    """A Lark grammar for one call, or with `several` one or more, of any tool or only of the one named.

    Raises RequestError where no such tool is declared.
    """
    chosen = [tool for tool in tools if only in (None, tool.name)]
    if not chosen:
        reason = "declares no tools" if only is None else f"declares no tool named {only!r}"
        raise RequestError(
            f"tool_choice asks for a call and the request {reason}", param="tool_choice"
        )
    return _Writer(form, cut).grammar(chosen, several=several)


class _Writer:
    """Collects rules. A rule's name is a word and a number, whatever the tool is called."""

    def __init__(self, form: CallForm, cut: Cut) -> None:
        self._form = form
        self._cut = cut
        self._rules: list[str] = []
        self._ends: dict[str, str] = {}
        self._has_any = False

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> str:
        write: Callable[[Tool], str] = {
            "xml": self._xml,
            "json": self._json,
            "keyed": self._keyed,
            "gemma": self._gemma,
            "dsml": self._dsml,
        }[self._form]
        call = self._rule("call", " | ".join(self._rule("tool", write(tool)) for tool in tools))
        if self._form == "dsml":
            head, foot = "<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"
            start = f"{self._text(head)} {call}{'+' if several else ''} {self._text(foot)}"
        else:
            gap = "" if self._form == "gemma" else f"{self._text(chr(10))} "
            start = f"{call} ({gap}{call})*" if several else call
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _json(self, tool: Tool) -> str:
        schema = {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": _closed(tool.parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        body = _json(_hoisted(schema, tool.parameters))
        return self._between("<tool_call>\n", body, "\n</tool_call>")

    def _xml(self, tool: Tool) -> str:
        body = self._parameters(
            tool, lambda key: f"<parameter={key}>\n", "</parameter>", gap="\n", is_free=may_be_text
        )
        head = f"<tool_call>\n<function={tool.name}>\n"
        return self._between(head, body, "</function>\n</tool_call>")

    def _keyed(self, tool: Tool) -> str:
        body = self._parameters(
            tool,
            lambda key: f"<arg_key>{key}</arg_key>\n<arg_value>",
            "</arg_value>",
            is_free=may_be_text,
        )
        return self._between(f"<tool_call>{tool.name}\n", body, "</tool_call>")

    def _dsml(self, tool: Tool) -> str:
        def head(key: str) -> str:
            text = "true" if is_text(tool.schema_of(key)) else "false"
            return f'<｜DSML｜parameter name="{key}" string="{text}">'

        body = self._parameters(tool, head, "</｜DSML｜parameter>", is_free=is_text)
        return self._between(f'<｜DSML｜invoke name="{tool.name}">\n', body, "</｜DSML｜invoke>\n")

    def _gemma(self, tool: Tool) -> str:
        value = self._relaxed(_closed(tool.parameters), tool.parameters)
        return self._between(f"<|tool_call>call:{tool.name}", value, "<tool_call|>")

    def _parameters(
        self,
        tool: Tool,
        head: Callable[[str], str],
        foot: str,
        *,
        gap: str = "",
        is_free: Callable[[Schema | None], bool],
    ) -> str:
        """Each parameter between its tags, with `gap` before the closer and a new line behind; those not
        required may be left out. `is_free`: a value of this schema is text as it stands."""
        parts = []
        for key in tool.properties:
            schema = tool.schema_of(key)
            end = f"{gap}{foot}\n"
            choices = _choices(schema)
            if choices:
                body = "(" + " | ".join(self._text(choice + end) for choice in choices) + ")"
            elif is_free(schema):
                body = f"{self._until(foot)} {self._text(chr(10))}"
            else:
                body = f"{_json(_hoisted(schema or {}, tool.parameters))} {self._text(end)}"
            part = f"{self._text(head(key))} {body}"
            parts.append(part if key in tool.required else f"({part})?")
        return " ".join(parts)

    def _until(self, mark: str) -> str:
        """The rule of any text up to a mark."""
        if mark not in self._ends:
            name = self._ends[mark] = f"text_{len(self._ends)}"
            self._rules.append(until(name, mark, self._cut).rstrip("\n"))
        return self._ends[mark]

    def _relaxed(self, schema: Any, root: Schema, seen: frozenset[str] = frozenset()) -> str:
        """Gemma's values: bare keys, strings in quotes of their own. `seen`: references on the way here; one
        that comes again may be anything."""
        schema, seen = _resolved(schema, root, seen)

        def inner(part: Any) -> str:
            return self._relaxed(part, root, seen)

        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return _either(self._text(_written(value)) for value in values)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        for union in ("anyOf", "oneOf"):
            if kinds is None and isinstance(schema.get(union), list):
                return _either(map(inner, schema[union]))
        if isinstance(kinds, list | tuple):
            return _either(inner({**schema, "type": kind}) for kind in kinds)
        if kinds == "object" and isinstance(schema.get("properties"), dict):
            return self._relaxed_object(schema, inner)
        if kinds == "array" and "items" in schema:
            item = self._rule("item", inner(schema["items"]))
            return f'"[" ({item} ("," {item})*)? "]"'
        if kinds in ("integer", "number", "boolean", "null"):
            return _json({**schema, "type": kinds})
        return self._any(kinds)

    def _relaxed_object(self, schema: Schema, inner: Callable[[Any], str]) -> str:
        """Required members first, then any of the others, in order."""
        rules = {}
        for key, value in schema["properties"].items():
            written = key if _KEY.fullmatch(key) else f"{_QUOTE}{key}{_QUOTE}"
            rules[key] = self._rule("member", f"{self._text(written + ':')} {inner(value)}")
        required = [rules[key] for key in rules if key in schema.get("required", ())]
        others = [rules[key] for key in rules if key not in schema.get("required", ())]

        def after(first: str, rest: Sequence[str]) -> str:
            return first + "".join(f' ("," {rule})?' for rule in rest)

        if required:
            must = ' "," '.join(required)
            return f'"{{" {after(must, others)} "}}"'
        # The first member that is there has no comma before it.
        runs = [after(rule, others[at + 1 :]) for at, rule in enumerate(others)]
        return f'"{{" {_either(runs)}? "}}"' if runs else '"{}"'

    def _any(self, kind: object) -> str:
        """A value of which only the kind is known, or nothing."""
        if not self._has_any:
            self._has_any = True
            self._rules += [
                f"relaxed_string: {self._text(_QUOTE)} {self._until(_QUOTE)}",
                'relaxed_object: "{" (relaxed_member ("," relaxed_member)*)? "}"',
                'relaxed_member: /[A-Za-z_][A-Za-z0-9_]*/ ":" relaxed_any',
                'relaxed_array: "[" (relaxed_any ("," relaxed_any)*)? "]"',
                f"relaxed_plain: {_json({'type': ['number', 'boolean', 'null']})}",
                "relaxed_any: relaxed_string | relaxed_object | relaxed_array | relaxed_plain",
            ]
        return f"relaxed_{kind}" if kind in ("string", "object", "array") else "relaxed_any"

    def _between(self, head: str, body: str, foot: str) -> str:
        return " ".join(part for part in (self._text(head), body, self._text(foot)) if part)

    def _rule(self, word: str, body: str) -> str:
        name = f"{word}_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _text(self, text: str) -> str:
        return literal(text, self._cut)


def _json(schema: Any) -> str:
    return f"%json {json.dumps(schema)}"


def _either(parts: Iterable[str]) -> str:
    return "(" + " | ".join(parts) + ")"


def _closed(schema: Schema) -> dict[str, Any]:
    """The parameters' schema: an object, without members that are not declared unless it says so."""
    closed = {"type": "object", **schema}
    if not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref", "patternProperties"}:
        closed = {"properties": {}, "additionalProperties": False, **closed}
    return closed


def _hoisted(schema: Schema, root: Schema) -> dict[str, Any]:
    """A part of a schema with the definitions of the whole, which its references are relative to."""
    names = [name for name in ("$defs", "definitions") if name in root]
    return {**schema, **{name: root[name] for name in names}}


def _resolved(schema: Any, root: Schema, seen: frozenset[str]) -> tuple[Schema, frozenset[str]]:
    """Follow `#/$defs/NAME`, each only once."""
    while isinstance(schema, dict) and isinstance(at := schema.get("$ref"), str):
        if at in seen:
            return {}, seen
        seen |= {at}
        found: Any = root
        for step in at.removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        schema = found
    return (schema if isinstance(schema, dict) else {}), seen


def _choices(schema: Schema | None) -> list[str]:
    """The texts that a value must be one of, if the schema says so."""
    schema = schema or {}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return []
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _written(value: Any) -> str:
    """A fixed value in Gemma's form."""
    if isinstance(value, str):
        return f"{_QUOTE}{value}{_QUOTE}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)
