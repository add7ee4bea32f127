"""An answer's events to those of OpenAI's Responses API.

Invariants: `sequence_number` counts the events from 0; the response of a reply that is not streamed
is that of the stream's last event.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydflash.server import openai
from pydflash.server.responses_items import (
    Call,
    CustomCall,
    Item,
    Message,
    Summary,
    Thought,
)
from pydflash.service.chat import (
    CallEnd,
    CallStart,
    ChatEvent,
    ChatFinished,
    ChatStarted,
    TokenLogprobs,
)
from pydflash.text.stream import Content, Reasoning, ToolCallArguments

Wire = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a client wants to be told.

    `summary`: thoughts as a summary (which is the whole thought), else as the reasoning's own text.
    `custom`: tools whose call is one free text; `namespaces`: which one a tool was declared in.
    """

    summary: bool = False
    custom: frozenset[str] = frozenset()
    namespaces: Mapping[str, str] = field(default_factory=dict)


class ResponseStream:
    """Follows one answer: `feed` it the events and send what it yields.

    `response` is the whole reply once ChatFinished has been fed (or `fail` called).
    """

    def __init__(self, echo: Mapping[str, Any], style: Style) -> None:
        """`echo`: the fields of the response that repeat the request, and the model's name."""
        self.response: Wire = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **echo,
        }
        self._style = style
        self._sequence = 0
        self._item: Item | None = None
        self._logprobs: list[Wire] = []

    def feed(self, event: ChatEvent) -> Iterator[Wire]:
        """The events to send, each with its `type` and number."""
        for wire in self._feed(event):
            yield self._numbered(wire)

    def fail(self, message: str, *, code: str = "server_error") -> Iterator[Wire]:
        """The stream's end when the answer cannot be finished."""
        self.response.update(status="failed", error={"code": code, "message": message})
        yield self._numbered({"type": "response.failed", "response": self._snapshot()})

    def _feed(self, event: ChatEvent) -> Iterator[Wire]:
        match event:
            case ChatStarted():
                for kind in ("response.created", "response.in_progress"):
                    yield {"type": kind, "response": self._snapshot()}
            case TokenLogprobs("content", tokens):
                self._logprobs += [openai.entry(token) for token in tokens]
            case Content(text):
                yield from self._into(Message)
                yield from self._more(text)
            case Reasoning(text):
                yield from self._into(Summary if self._style.summary else Thought)
                yield from self._more(text)
            case CallStart(id=call_id, name=name):
                yield from self._close()
                yield from self._begin(self._call(call_id, name))
            case ToolCallArguments(json_delta=text):
                yield from self._more(text)
            case CallEnd(complete=complete):
                yield from self._close("completed" if complete else "incomplete")
            case ChatFinished():
                yield from self._finish(event)

    def _into(self, kind: type[Message | Summary | Thought]) -> Iterator[Wire]:
        """Be inside an item of this kind."""
        if not isinstance(self._item, kind):
            yield from self._close()
            yield from self._begin(kind())

    def _begin(self, item: Item) -> Iterator[Wire]:
        self._item = item
        output: list[Wire] = self.response["output"]
        output.append(item.record("in_progress"))
        yield {
            "type": "response.output_item.added",
            "output_index": len(output) - 1,
            "item": item.record("in_progress"),
        }
        yield from self._placed(item, item.opening())

    def _more(self, text: str) -> Iterator[Wire]:
        assert self._item is not None
        logprobs, self._logprobs = self._logprobs, []
        yield from self._placed(self._item, self._item.more(text, logprobs))

    def _close(self, status: str = "completed") -> Iterator[Wire]:
        item, self._item = self._item, None
        if item is None:
            return
        yield from self._placed(item, item.closing())
        output: list[Wire] = self.response["output"]
        output[-1] = item.record(status)
        yield {
            "type": "response.output_item.done",
            "output_index": len(output) - 1,
            "item": output[-1],
        }

    def _call(self, call_id: str, name: str) -> Item:
        if name in self._style.custom:
            return CustomCall(call_id, name)
        return Call(call_id, name, self._style.namespaces.get(name))

    def _finish(self, event: ChatFinished) -> Iterator[Wire]:
        cut = event.reason in ("length", "abort")
        yield from self._close("incomplete" if cut else "completed")
        status = "incomplete" if cut else "completed"
        self.response.update(
            status=status,
            completed_at=None if cut else int(time.time()),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=usage_record(event),
        )
        yield {"type": f"response.{status}", "response": self._snapshot()}

    def _placed(self, item: Item, events: Iterable[Wire]) -> Iterator[Wire]:
        place = {"item_id": item.id, "output_index": len(self.response["output"]) - 1}
        for event in events:
            yield event | place

    def _snapshot(self) -> Wire:
        return {**self.response, "output": list(self.response["output"])}

    def _numbered(self, wire: Wire) -> Wire:
        wire["sequence_number"] = self._sequence
        self._sequence += 1
        return wire


def usage_record(event: ChatFinished) -> Wire:
    """Cached tokens are part of `input_tokens`, reasoning is part of `output_tokens`."""
    usage = event.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        **openai.figures([event]),
    }
