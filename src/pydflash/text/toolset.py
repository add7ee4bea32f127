"""The tools a request declares, in one form whichever API they came through."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydflash.errors import RequestError

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema of an object."""

    name: str
    description: str = ""
    parameters: Schema = field(default_factory=dict)

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each declared parameter."""
        found = self.parameters.get("properties")
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> tuple[str, ...]:
        """The parameters that a call must have."""
        found = self.parameters.get("required")
        return tuple(found) if isinstance(found, list | tuple) else ()

    def schema_of(self, parameter: str) -> Schema | None:
        """The schema of a parameter, None if it is not declared or not a schema."""
        found = self.properties.get(parameter)
        return found if isinstance(found, Mapping) else None


class Toolset:
    """The declared tools by name, in order. `ignored` names the types of tools that are not functions."""

    def __init__(self, tools: Sequence[Tool] = (), *, ignored: Sequence[str] = ()) -> None:
        """Of two tools with one name the later counts."""
        self._tools = {tool.name: tool for tool in tools}
        self.ignored = tuple(ignored)

    @classmethod
    def parse(cls, items: Sequence[Any] | None) -> "Toolset":
        """From the `tools` of any of the APIs:

        `{type: function, function: {name, parameters}}`, the same without the inner object, or
        `{name, input_schema}`. Tools of other types (a vendor's own search, …) are left out and named
        in `ignored`. Raises RequestError with the path of what is wrong.
        """
        tools: list[Tool] = []
        ignored: list[str] = []
        for at, item in enumerate(items or ()):
            if not isinstance(item, Mapping):
                raise RequestError(f"tools[{at}] is not an object", param=f"tools[{at}]")
            kind = item.get("type")
            if kind not in (None, "function", "custom") or (
                kind == "custom" and "input_schema" not in item
            ):
                ignored.append(str(kind))
                continue
            tools.append(_tool(item, at))
        return cls(tools, ignored=ignored)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def for_template(self) -> list[dict[str, Any]]:
        """What chat templates read: `{type: function, function: {name, description, parameters}}`."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters or {"type": "object", "properties": {}},
                },
            }
            for tool in self
        ]


def _tool(item: Mapping[str, Any], at: int) -> Tool:
    path = f"tools[{at}]"
    inner = item.get("function", item)
    if not isinstance(inner, Mapping):
        raise RequestError(f"{path}.function is not an object", param=f"{path}.function")
    if inner is not item:
        path += ".function"
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{path}.name must be a non-empty string", param=f"{path}.name")
    key = "input_schema" if "input_schema" in inner else "parameters"
    parameters = inner.get(key)
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(f"{path}.{key} must be an object", param=f"{path}.{key}")
    description = inner.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{path}.description must be a string", param=f"{path}.description")
    return Tool(name=name, description=description or "", parameters=parameters or {})
