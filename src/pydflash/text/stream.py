"""The events that an answer's text is made of. One stream for every face; a reply is their fold.

Invariant: the `json_delta`s of a call, joined, are its `ToolCallEnd.arguments`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the visible answer. `at`: where in all the pushed text it stands, for its tokens."""

    text: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it answered. `at` as in Content."""

    text: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ReasoningClosed:
    """The model (or the budget) closed its reasoning."""


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of a declared tool begins. `index` counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of the call's arguments, as JSON text."""

    index: int
    json_delta: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is over. `complete` is false if the text broke off: then `arguments` may not be JSON."""

    index: int
    name: str
    arguments: str
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ToolCallDropped:
    """Text in the form of a call that is none; not for the client, but to be logged and counted."""

    text: str
    reason: str


StreamEvent = (
    Content
    | Reasoning
    | ReasoningClosed
    | ToolCallStart
    | ToolCallArguments
    | ToolCallEnd
    | ToolCallDropped
)


@dataclass(slots=True, kw_only=True)
class Folded:
    """A whole answer: the fold of its events."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCallEnd] = field(default_factory=list)
    dropped: list[ToolCallDropped] = field(default_factory=list)


def fold(events: Iterable[StreamEvent]) -> Folded:
    """The reply that a stream amounts to."""
    whole = Folded()
    content: list[str] = []
    reasoning: list[str] = []
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case ToolCallEnd():
                whole.calls.append(event)
            case ToolCallDropped():
                whole.dropped.append(event)
    whole.content, whole.reasoning = "".join(content), "".join(reasoning)
    return whole


def merge(events: Iterable[StreamEvent]) -> list[StreamEvent]:
    """Pieces of one kind that are neighbours in the text joined: how a stream was cut is gone."""
    merged: list[StreamEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        match last, event:
            case (Content(a, at=i), Content(b, at=j)) if i + len(a) == j:
                merged[-1] = Content(a + b, i)
            case (Reasoning(a, at=i), Reasoning(b, at=j)) if i + len(a) == j:
                merged[-1] = Reasoning(a + b, i)
            case (ToolCallArguments(i, a), ToolCallArguments(j, b)) if i == j:
                merged[-1] = ToolCallArguments(i, a + b)
            case _:
                merged.append(event)
    return merged
