"""Constraint: what an answer must be a text of. A record; `service/guidance.py` compiles it."""

from dataclasses import dataclass
from typing import Literal

from pydflash.text.call_grammar import call_grammar
from pydflash.text.formats import Format
from pydflash.text.lark import Cut
from pydflash.text.toolset import Toolset

Kind = Literal["json_schema", "json_object", "regex", "grammar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """`text` is the JSON schema, the regular expression (Rust's dialect, over the whole answer) or the
    Lark grammar (llguidance's dialect); any JSON object needs none.

    `after`: a marker, as that which closes reasoning, up to and with which anything may be written first.
    `param`: the field of the request that errors name; by default the kind.
    """

    kind: Kind
    text: str = ""
    after: str = ""
    param: str | None = None

    @classmethod
    def calls(
        cls,
        form: Format,
        tools: Toolset,
        cut: Cut,
        *,
        only: str | None = None,
        several: bool = True,
        after: str = "",
    ) -> "Constraint":
        """What `tool_choice` required, or named with `only`, asks for: nothing but calls of the tools.

        `cut` is the tokenizer's. Raises RequestError if there is no such tool.
        """
        text = call_grammar(form.calls, tools, cut, only=only, several=several)
        return cls(kind="grammar", text=text, after=after, param="tools")
