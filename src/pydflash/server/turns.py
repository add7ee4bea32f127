"""OpenAI's messages, to turns."""

from collections.abc import Sequence
from typing import Any, Literal

from pydflash.errors import RequestError
from pydflash.server.fields import Body
from pydflash.text.history import PastCall, Turn

Part = dict[str, Any]


class FunctionCall(Body):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Body):
    id: str = ""
    function: FunctionCall


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


def turns_of(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """The conversation. Raises RequestError with the path of what is wrong."""
    return tuple(turn_of(m, f"messages[{i}]") for i, m in enumerate(messages))


def turn_of(message: Message, path: str) -> Turn:
    """A message of OpenAI's chat as a turn. Raises RequestError with the path of what is wrong."""
    if message.role == "user" and message.content is None:
        raise RequestError(f"{path}.content is missing", param=f"{path}.content")
    content = "" if message.content is None else message.content
    if not isinstance(content, str):
        content = [_part(part, f"{path}.content[{i}]") for i, part in enumerate(content)]
    return Turn(
        role="tool" if message.role == "function" else message.role,
        content=content,
        reasoning=message.reasoning_content or message.reasoning or "",
        calls=tuple(
            PastCall(id=c.id, name=c.function.name, arguments=c.function.arguments)
            for c in message.tool_calls or ()
        ),
        call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def _part(part: Part, path: str) -> Part:
    kind = part.get("type", "text")
    text = part.get("refusal") if kind == "refusal" else part.get("text")
    if kind not in ("text", "refusal", "input_text", "output_text"):
        raise RequestError(
            f"{path} is of type {kind!r}; this server reads text only", param=f"{path}.type"
        )
    if not isinstance(text, str):
        raise RequestError(f"{path}.text must be a string", param=f"{path}.text")
    return {"type": "text", "text": text}
