"""The input items of a Responses request, to turns.

In this API a turn of the assistant is a run of items (thoughts, messages, calls); here it is one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydflash.errors import RequestError
from pydflash.text.history import Content, PastCall, Turn
from pydflash.text.json_text import dump

Item = Mapping[str, Any]

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_PICTURES = ("input_image", "input_file", "input_audio", "computer_screenshot")


class History:
    """Takes the items in order. `tools` are those declared in between."""

    def __init__(self) -> None:
        self.tools: list[Mapping[str, Any]] = []
        self._turns: list[Turn] = []
        self._thoughts: list[str] = []
        self._texts: list[str] = []
        self._calls: list[PastCall] = []

    @property
    def turns(self) -> tuple[Turn, ...]:
        self._close()
        return tuple(self._turns)

    def add_turn(self, turn: Turn) -> None:
        """A turn of anyone but the assistant."""
        self._close()
        self._turns.append(turn)

    def add(self, item: Item, path: str) -> None:
        """Raises RequestError with the path of what cannot be read."""
        kind = item.get("type") or "message"
        match kind:
            case "message":
                self._message(item, path)
            case "reasoning":
                self._thoughts += _thought(item, path)
            case "function_call":
                self._call(item, path, _text(item, "arguments", path))
            case "custom_tool_call":
                self._call(item, path, {"input": _text(item, "input", path)})
            case "function_call_output" | "custom_tool_call_output":
                output = _output(item.get("output"), f"{path}.output")
                call_id = _text(item, "call_id", path)
                self.add_turn(Turn(role="tool", content=output, call_id=call_id))
            case "additional_tools":
                self.tools += _tools(item.get("tools"), f"{path}.tools")
            case "item_reference":
                raise RequestError(
                    f"{path}: this server stores nothing that an item_reference could mean; "
                    "send the item itself",
                    param=path,
                )
            case _:
                raise RequestError(
                    f"{path}.type: {kind!r} is not a type of item that this server reads",
                    param=f"{path}.type",
                )

    def _message(self, item: Item, path: str) -> None:
        role = item.get("role")
        content = _content(item.get("content"), f"{path}.content")
        if role == "assistant":
            self._texts.append(
                content if isinstance(content, str) else "".join(p["text"] for p in content)
            )
        elif role in ("user", "system", "developer"):
            self.add_turn(Turn(role=role, content=content))
        else:
            raise RequestError(
                f"{path}.role must be user, assistant, system or developer", param=f"{path}.role"
            )

    def _call(self, item: Item, path: str, arguments: Mapping[str, Any] | str) -> None:
        call_id = item.get("call_id") or item.get("id")
        if not isinstance(call_id, str):
            raise RequestError(f"{path}.call_id must be a string", param=f"{path}.call_id")
        self._calls.append(
            PastCall(id=call_id, name=_text(item, "name", path), arguments=arguments)
        )

    def _close(self) -> None:
        """End the assistant's turn."""
        if self._thoughts or self._texts or self._calls:
            self._turns.append(
                Turn(
                    role="assistant",
                    content="\n\n".join(text for text in self._texts if text),
                    reasoning="\n\n".join(self._thoughts),
                    calls=tuple(self._calls),
                )
            )
        self._thoughts, self._texts, self._calls = [], [], []


def _thought(item: Item, path: str) -> list[str]:
    """The text of a reasoning item: its own if it has one, else its summary."""
    for key in ("content", "summary"):
        parts = item.get(key)
        if parts:
            found = _content(parts, f"{path}.{key}")
            return [found if isinstance(found, str) else "\n\n".join(p["text"] for p in found)]
    return []


def _tools(tools: object, path: str) -> list[Mapping[str, Any]]:
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestError(f"{path} must be a list of objects", param=path)
    return tools


def _content(content: object, path: str) -> Content:
    """A text, or several parts for the template to join."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{path} must be a string or a list of parts", param=path)
    parts = [
        {"type": "text", "text": _part(part, f"{path}[{at}]")} for at, part in enumerate(content)
    ]
    return parts[0]["text"] if len(parts) == 1 else parts


def _part(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError(f"{path} must be an object", param=path)
    kind = part.get("type")
    if kind in _TEXTS:
        return _text(part, "text", path)
    if kind == "refusal":
        return _text(part, "refusal", path)
    if kind in _PICTURES:
        raise RequestError(f"{path} is an {kind}; this model reads text only", param=path)
    raise RequestError(
        f"{path}.type: {kind!r} is not a type of content that can stand here", param=f"{path}.type"
    )


def _output(output: object, path: str) -> str:
    """What a tool gave: a text, parts, or any JSON."""
    if isinstance(output, str):
        return output
    if isinstance(output, Sequence) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in output
    ):
        return "\n".join(_part(part, f"{path}[{at}]") for at, part in enumerate(output))
    return "" if output is None else dump(output)


def _text(item: Item, key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{path}.{key} must be a string", param=f"{path}.{key}")
    return value
