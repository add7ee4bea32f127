"""The Jinja environment chat templates run in: sandboxed, immutable, with a budget.

A template comes out of a model file and is not trusted. It reaches no Python internals, changes
none of its arguments; its ranges together, each string its operators build, and its output are
bounded (what filters build is not: see docs/text.md). Nothing but jinja2 is used.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 32 * 1024 * 1024  # of any one string that an operator builds, and of the output
MAX_RANGE_ITEMS = 1_000_000  # of all ranges of one rendering together
_MAX_POWER_BITS = 4096
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)")


class RefusedError(JinjaError):
    """The template itself said no, through `raise_exception`."""


class GenerationBlock(Extension):
    """`{% generation %}` marks assistant text for training; in rendering its body just stands."""

    tags = {"generation"}  # noqa: RUF012 (the library's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedCode(CodeGenerator):
    """Sends the `~` operator through the environment, which bounds it."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with bounded arithmetic, `tojson` as models expect it, and `raise_exception`."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _BoundedCode

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, GenerationBlock],
        )
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        del self.globals["lipsum"]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuses results too large to build; else as usual."""
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(times, int):
                    _bound(len(text) * times)
        elif operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
            _bound(len(left) + len(right))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _bound(0 if left.bit_length() * right <= _MAX_POWER_BITS else MAX_CHARS + 1)
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise SecurityError("it formats a number to an unreasonable width")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuses paddings by huge numbers (`center`, `ljust`, …)."""
        if isinstance(getattr(__obj, "__self__", None), str):
            for value in args:
                _bound(value if isinstance(value, int) else 0)
        return super().call(__context, __obj, *args, **kwargs)

    @staticmethod
    def concatenate(parts: tuple[object, ...]) -> str:
        """The `~` operator."""
        texts = [str(part) for part in parts]
        _bound(sum(map(len, texts)))
        return "".join(texts)


def budgeted_range() -> Callable[..., range]:
    """`range` for one rendering: all its calls together yield at most MAX_RANGE_ITEMS items."""
    left = MAX_RANGE_ITEMS

    def limited(*args: int) -> range:
        nonlocal left
        items = range(*args)
        left -= len(items) + 1
        if left < 0:
            raise SecurityError(f"its loops count over more than {MAX_RANGE_ITEMS} items")
        return items

    return limited


def raise_exception(message: object) -> str:
    """The template's way to refuse a conversation."""
    raise RefusedError(str(message))


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the models were trained on: not HTML-escaped, non-ASCII characters as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _bound(size: int) -> None:
    if size > MAX_CHARS:
        raise SecurityError(f"it builds a value of more than {MAX_CHARS} characters")
