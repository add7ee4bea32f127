"""The items of a Responses output, and the events that tell of each while it is written.

What an item yields lacks its place (`item_id`, `output_index`) and number, which the stream adds.
"""

import secrets
from typing import Any

from pydflash.text.json_text import parse_object

Wire = dict[str, Any]


class Item:
    """One item of the output, written piece by piece."""

    prefix = "msg"

    def __init__(self) -> None:
        self.id = f"{self.prefix}_{secrets.token_hex(16)}"
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def opening(self) -> list[Wire]:
        return []

    def more(self, text: str, logprobs: list[Wire]) -> list[Wire]:
        self._pieces.append(text)
        return []

    def closing(self) -> list[Wire]:
        return []

    def record(self, status: str) -> Wire:
        """The item as JSON. While `in_progress` it has no content yet."""
        raise NotImplementedError


class Message(Item):
    """The visible answer."""

    def __init__(self) -> None:
        super().__init__()
        self._logprobs: list[Wire] = []

    def opening(self) -> list[Wire]:
        return [{"type": "response.content_part.added", "content_index": 0, "part": self._part()}]

    def more(self, text: str, logprobs: list[Wire]) -> list[Wire]:
        self._pieces.append(text)
        self._logprobs += logprobs
        event = {"type": "response.output_text.delta", "content_index": 0, "delta": text}
        return [event | {"logprobs": logprobs}]

    def closing(self) -> list[Wire]:
        done = {"type": "response.output_text.done", "content_index": 0, "text": self.text}
        part = {"type": "response.content_part.done", "content_index": 0, "part": self._part()}
        return [done | {"logprobs": self._logprobs}, part]

    def record(self, status: str) -> Wire:
        content = [] if status == "in_progress" else [self._part()]
        return {
            "type": "message",
            "id": self.id,
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self) -> Wire:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }


class Thought(Item):
    """Reasoning, as its own text."""

    prefix = "rs"

    def opening(self) -> list[Wire]:
        return [{"type": "response.content_part.added", "content_index": 0, "part": self._part()}]

    def more(self, text: str, logprobs: list[Wire]) -> list[Wire]:
        self._pieces.append(text)
        return [{"type": "response.reasoning_text.delta", "content_index": 0, "delta": text}]

    def closing(self) -> list[Wire]:
        done = {"type": "response.reasoning_text.done", "content_index": 0, "text": self.text}
        part = {"type": "response.content_part.done", "content_index": 0, "part": self._part()}
        return [done, part]

    def record(self, status: str) -> Wire:
        content = [] if status == "in_progress" else [self._part()]
        return {
            "type": "reasoning",
            "id": self.id,
            "status": status,
            "summary": [],
            "content": content,
        }

    def _part(self) -> Wire:
        return {"type": "reasoning_text", "text": self.text}


class Summary(Item):
    """Reasoning, as the summary that the client asked for: the thought itself."""

    prefix = "rs"

    def opening(self) -> list[Wire]:
        kind = "response.reasoning_summary_part.added"
        return [{"type": kind, "summary_index": 0, "part": self._part()}]

    def more(self, text: str, logprobs: list[Wire]) -> list[Wire]:
        self._pieces.append(text)
        kind = "response.reasoning_summary_text.delta"
        return [{"type": kind, "summary_index": 0, "delta": text}]

    def closing(self) -> list[Wire]:
        done = "response.reasoning_summary_text.done"
        part = "response.reasoning_summary_part.done"
        return [
            {"type": done, "summary_index": 0, "text": self.text},
            {"type": part, "summary_index": 0, "part": self._part()},
        ]

    def record(self, status: str) -> Wire:
        summary = [] if status == "in_progress" else [self._part()]
        return {"type": "reasoning", "id": self.id, "status": status, "summary": summary}

    def _part(self) -> Wire:
        return {"type": "summary_text", "text": self.text}


class Call(Item):
    """A call of a function. `namespace` is where the client declared it, if in one."""

    prefix = "fc"

    def __init__(self, call_id: str, name: str, namespace: str | None) -> None:
        super().__init__()
        self._fields = {"call_id": call_id, "name": name}
        if namespace is not None:
            self._fields["namespace"] = namespace

    def more(self, text: str, logprobs: list[Wire]) -> list[Wire]:
        self._pieces.append(text)
        return [{"type": "response.function_call_arguments.delta", "delta": text}]

    def closing(self) -> list[Wire]:
        return [{"type": "response.function_call_arguments.done", "arguments": self.text}]

    def record(self, status: str) -> Wire:
        record = {"type": "function_call", "id": self.id, "status": status, **self._fields}
        return record | {"arguments": self.text}


class CustomCall(Item):
    """A call of a tool that takes free text: the one string in the arguments the model wrote."""

    prefix = "ctc"

    def __init__(self, call_id: str, name: str) -> None:
        super().__init__()
        self._fields = {"call_id": call_id, "name": name}

    def closing(self) -> list[Wire]:
        text = self._input()
        return [
            {"type": "response.custom_tool_call_input.delta", "delta": text},
            {"type": "response.custom_tool_call_input.done", "input": text},
        ]

    def record(self, status: str) -> Wire:
        text = "" if status == "in_progress" else self._input()
        record = {"type": "custom_tool_call", "id": self.id, "status": status, **self._fields}
        return record | {"input": text}

    def _input(self) -> str:
        found = (parse_object(self.text) or {}).get("input", "")
        return found if isinstance(found, str) else ""
