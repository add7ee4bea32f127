"""An answer's events to those of Anthropic's Messages API.

Invariant: the message of a reply that is not streamed is what a client builds of the stream.
"""

import secrets
from collections.abc import Iterator
from typing import Any

from pydflash.server import openai
from pydflash.service.chat import (
    CallEnd,
    CallStart,
    ChatEvent,
    ChatFinished,
    ChatStarted,
)
from pydflash.text.json_text import parse_object
from pydflash.text.stream import Content, Reasoning, ToolCallArguments

Wire = dict[str, Any]

# Clients keep a thought only if it has a signature; nobody signs here, and the word says so.
SIGNATURE = "unsigned"


class MessageStream:
    """Follows one answer: `feed` it the events and send what it yields.

    `message` is the whole reply once ChatFinished has been fed.
    """

    def __init__(self, model: str, *, show_thinking: bool = True) -> None:
        """`show_thinking`: send the text of thoughts, not only that there was one."""
        self.message: Wire = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {},
        }
        self._show_thinking = show_thinking
        self._open: str | None = None  # the type of the block under way
        self._pieces: list[str] = []  # of its text

    def feed(self, event: ChatEvent) -> Iterator[Wire]:
        """The events to send, each with its `type`."""
        match event:
            case ChatStarted(prompt_tokens=prompt):
                yield from self._start(prompt)
            case Content(text):
                yield from self._into("text", {"type": "text", "text": ""})
                yield self._delta(text, {"type": "text_delta", "text": text})
            case Reasoning(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                yield from self._into("thinking", block)
                if self._show_thinking:
                    yield self._delta(text, {"type": "thinking_delta", "thinking": text})
            case CallStart(id=call_id, name=name):
                yield from self._close()
                call: Wire = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                yield from self._into("tool_use", call)
                yield self._delta("", {"type": "input_json_delta", "partial_json": ""})
            case ToolCallArguments(json_delta=text):
                yield self._delta(text, {"type": "input_json_delta", "partial_json": text})
            case CallEnd():
                yield from self._close()
            case ChatFinished():
                yield from self._finish(event)

    @property
    def _block(self) -> Wire:
        block: Wire = self.message["content"][-1]
        return block

    @property
    def _index(self) -> int:
        return len(self.message["content"]) - 1

    def _start(self, prompt_tokens: int) -> Iterator[Wire]:
        self.message["usage"] = {
            "input_tokens": prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        yield {"type": "message_start", "message": {**self.message, "content": []}}
        yield {"type": "ping"}

    def _into(self, kind: str, block: Wire) -> Iterator[Wire]:
        """Be inside a block of this kind."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self.message["content"].append(block)
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    def _delta(self, text: str, delta: Wire) -> Wire:
        self._pieces.append(text)
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> Iterator[Wire]:
        block, text = self._open, "".join(self._pieces)
        self._open, self._pieces = None, []
        if block == "text":
            self._block["text"] = text
        elif block == "tool_use":
            # What broke off is no object: an empty one lacks what the tool needs, and is refused.
            self._block["input"] = parse_object(text) or {}
        elif block == "thinking":
            self._block.update(thinking=text, signature=SIGNATURE)
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "content_block_delta", "index": self._index, "delta": delta}
        if block is not None:
            yield {"type": "content_block_stop", "index": self._index}

    def _finish(self, event: ChatFinished) -> Iterator[Wire]:
        yield from self._close()
        reason, stop = stop_reason(event)
        self.message["stop_reason"], self.message["stop_sequence"] = reason, stop
        self.message["usage"] = usage_record(event)
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": self.message["usage"],
        }
        yield {"type": "message_stop"}


def stop_reason(event: ChatFinished) -> tuple[str, str | None]:
    """`stop_reason` and `stop_sequence`."""
    if event.reason == "tool_calls":
        return "tool_use", None
    if event.reason in ("length", "abort"):
        return "max_tokens", None
    return ("end_turn", None) if event.stop is None else ("stop_sequence", event.stop)


def usage_record(event: ChatFinished) -> Wire:
    """Tokens read from the cache are not part of `input_tokens` in this API."""
    usage = event.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        **openai.figures([event]),
    }
