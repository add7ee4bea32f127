"""What an answer must be a text of: the forms in which the three APIs ask for JSON, and our own two."""

from collections.abc import Mapping
from typing import Any

from pydflash.errors import RequestError
from pydflash.service.constraint import Constraint
from pydflash.text.json_text import dump


def constraint(
    response_format: Mapping[str, Any] | None, grammar: str | None, regex: str | None
) -> Constraint | None:
    """By OpenAI's `response_format`, a grammar or an expression: one at most. Raises RequestError."""
    found = [json_format(response_format, "response_format", nested=True)]
    if grammar is not None:
        found.append(Constraint(kind="grammar", text=_unicode(grammar, "grammar")))
    if regex is not None:
        found.append(Constraint(kind="regex", text=_unicode(regex, "regex")))
    given = [one for one in found if one is not None]
    if len(given) > 1:
        raise RequestError(
            "response_format, grammar and regex exclude one another: give one",
            param="response_format",
        )
    return given[0] if given else None


def json_format(
    given: Mapping[str, Any] | None, path: str, *, nested: bool = False
) -> Constraint | None:
    """From `{type: text | json_object | json_schema}`, with the schema beside the type or in an
    object named `json_schema`; `nested` says that the latter is this API's form.

    `path` is where the request has it. Raises RequestError. What is wrong with a schema is said of `path`
    by OpenAI's chat, and of the schema's own path elsewhere.
    """
    kind = "text" if given is None else given.get("type", "text")
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return Constraint(kind="json_object", param=path)
    if kind != "json_schema":
        raise RequestError(
            f"{path}.type is {kind!r}; choose text, json_object or json_schema",
            param=f"{path}.type",
        )
    holder = given.get("json_schema", given)
    inner = nested or "json_schema" in given
    where = f"{path}.json_schema.schema" if inner else f"{path}.schema"
    schema = holder.get("schema") if isinstance(holder, Mapping) else None
    if not isinstance(schema, Mapping):
        raise RequestError(f"{where} must be a JSON schema, an object", param=where)
    param = path if nested else where
    return Constraint(kind="json_schema", text=dump(dict(schema)), param=param)


def _unicode(text: str, param: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{param} has half a character: {error}", param=param) from error
    return text
