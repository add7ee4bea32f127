"""Constraint: what an answer must be a text of. A record; `service/guidance.py` compiles it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["json_schema", "json_object", "regex", "lark"]


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
