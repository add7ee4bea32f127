"""A conversation as clients send it, to the messages that chat templates read.

Three APIs say the same in three ways; the servers bring them to `Turn`s, and this makes of them
what a model saw in training: one system message in front, typed arguments, results in the order of
their calls and with the function's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydflash.text.json_text import parse_object
from pydflash.text.memory import ToolMemory
from pydflash.text.responses import wants_responses, with_responses

Role = Literal["system", "developer", "user", "assistant", "tool"]
Content = str | Sequence[Mapping[str, Any]]

_BILLING = "x-anthropic-billing-header:"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCall:
    """A call in the history. `arguments` is an object or its JSON text."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of any API.

    `content` is a text or a list of parts; `call_id` (and `name`, if known) tell what a tool's
    result answers.
    """

    role: Role
    content: Content = ""
    reasoning: str = ""
    calls: tuple[PastCall, ...] = ()
    call_id: str = ""
    name: str = ""


def messages(
    turns: Sequence[Turn],
    *,
    memory: ToolMemory | None = None,
    replay: bool = False,
    template_source: str = "",
) -> list[dict[str, Any]]:
    """What the template with this source reads.

    Turns whose calls `memory` remembers get their reasoning back, and with `replay` their own text as
    `raw`, which the built-in templates print as it stands.
    """
    system = system_text(turns)
    found: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    names = _names(turns)
    for turn in in_call_order(turns):
        if turn.role == "assistant":
            for call in turn.calls:
                if call.id:
                    names[call.id] = call.name
            found.append(_assistant(turn, memory, replay=replay))
        elif turn.role == "tool":
            found.append(_result(turn, names))
        elif turn.role == "user":
            found.append({"role": "user", "content": turn.content})
    return with_responses(found) if wants_responses(template_source) else found


def system_text(turns: Sequence[Turn]) -> str:
    """All system and developer messages as one, a blank line between them."""
    texts = (
        without_billing(turn.content) for turn in turns if turn.role in ("system", "developer")
    )
    return "\n\n".join(text for text in texts if text)


def without_billing(content: Content) -> str:
    """The text without a client's billing lines, which change from call to call and mean nothing.

    Of parts, those that begin with such a line are left out whole; the rest are joined as they are.
    """
    if isinstance(content, str):
        lines = content.splitlines(keepends=True)
        kept = [line for line in lines if not line.lstrip().startswith(_BILLING)]
        return content if len(kept) == len(lines) else "".join(kept).lstrip("\n")
    texts = (str(part.get("text", "")) for part in content)
    return "".join(text for text in texts if not text.lstrip().startswith(_BILLING))


def in_call_order(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with each assistant's results in the order of its calls.

    Other turns between the results stay where they are. Results whose id no call has come first, in
    the order they arrived.
    """
    ordered = list(turns)
    ranks: dict[str, int] = {}
    places: list[int] = []
    for at, turn in enumerate([*turns, _END]):
        if turn.role == "tool":
            places.append(at)
        elif turn.role == "assistant":
            results = sorted((turns[i] for i in places), key=lambda t: ranks.get(t.call_id, 0))
            for place, result in zip(places, results, strict=True):
                ordered[place] = result
            ranks = {call.id: rank for rank, call in enumerate(turn.calls)}
            places = []
    return ordered


def typed_arguments(arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """An object. Nothing is none; what is no object becomes the one parameter `arguments`."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if not arguments.strip():
        return {}
    found = parse_object(arguments)
    return {"arguments": arguments} if found is None else found


def _assistant(turn: Turn, memory: ToolMemory | None, *, replay: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.content}
    past = memory.recall(tuple(call.id for call in turn.calls)) if memory and turn.calls else None
    reasoning = turn.reasoning or (past.reasoning if past else "")
    if reasoning:
        message["reasoning_content"] = reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": typed_arguments(call.arguments)},
            }
            for call in turn.calls
        ]
    if past and replay:
        message["raw"] = past.text
    return message


def _result(turn: Turn, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": turn.content,
        "tool_call_id": turn.call_id,
        "name": names.get(turn.call_id) or turn.name,
    }


def _names(turns: Sequence[Turn]) -> dict[str, str]:
    """The function of every call id; a result may come before its call."""
    names: dict[str, str] = {}
    for turn in turns:
        for call in turn.calls:
            names.setdefault(call.id, call.name)
    names.pop("", None)
    return names


_END = Turn(role="assistant")
