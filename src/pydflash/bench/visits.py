"""Visits: what one client of a load run may do, and what a server must answer to it.

Invariant: a visit returns what happened, or raises Wrong (BadReply, TimeoutError, OSError) where the server
did not keep its word.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from pydflash.bench.http import Address, Reply, ask, hang_up, send

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
_TEXT = (
    "river stone lamp paper green quickly over tell answer seven market because light house number "
    "write under song train garden water slow bright letter window morning people never story map"
)
WORDS = _TEXT.split()
_SYSTEM = "You are a helpful assistant who answers in one or two plain sentences. "
_HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}

# What is not a request that can be answered: path, body, and the status of the refusal.
_MALFORMED: tuple[tuple[str, object, int], ...] = (
    (CHAT, b'{"messages": [', 400),
    (CHAT, b"\xff\xfe\x00 no text", 400),
    (CHAT, b"[" * 20000, 400),
    (CHAT, {"messages": "hello"}, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, _HELLO | {"temperature": "hot"}, 400),
    (CHAT, _HELLO | {"max_tokens": -4, "stream": True}, 400),
    (CHAT, _HELLO | {"tool_choice": "required"}, 400),
    (COMPLETIONS, {}, 400),
    (COMPLETIONS, {"prompt": [2**40]}, 400),
    (MESSAGES, {"max_tokens": 5}, 400),
    (RESPONSES, {"input": 5}, 400),
    ("/v1/embeddings", {"input": "hello"}, 404),
    ("/v1/nothing", {}, 404),
    (CHAT, None, 405),
)
_GARBAGE = (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"GET /one two\r\n\r\n")


class Wrong(Exception):
    """The server did what it must not do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of a visit: "answered", "left", "refused CODE" or "error CODE". `first_s`: seconds to the
    first text of a stream, where there was one. `tokens` of the answer."""

    result: str
    tokens: int = 0
    first_s: float | None = None


class Visitor:
    """One client, with dice of its own. What it asks fits into `max_ctx` tokens unless it is meant not to."""

    def __init__(self, address: Address, dice: Random, max_ctx: int) -> None:
        self._to = address
        self._dice = dice
        self._max_ctx = max_ctx
        self._system = _SYSTEM * max(min(max_ctx // 256, 4), 1)
        # How often, of a hundred.
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[Told]]]] = {
            "chat, streamed": (36, lambda: self._streamed(CHAT)),
            "completions, streamed": (6, lambda: self._streamed(COMPLETIONS)),
            "messages, streamed": (9, lambda: self._streamed(MESSAGES)),
            "responses, streamed": (9, lambda: self._streamed(RESPONSES)),
            "chat, whole": (10, self._whole),
            "reads late": (4, self._reads_late),
            "leaves within the stream": (9, self._leaves),
            "leaves at once": (5, self._leaves_at_once),
            "prompt too long": (3, self._too_long),
            "body too large": (2, self._too_large),
            "malformed": (6, self._malformed),
            "garbage": (1, self._garbage),
        }

    def choose(self) -> tuple[str, Callable[[], Awaitable[Told]]]:
        """What to do next: its name, and the doing of it."""
        kinds = list(self._kinds)
        kind = self._dice.choices(kinds, [self._kinds[k][0] for k in kinds])[0]
        return kind, self._kinds[kind][1]

    def _body(self, path: str, **more: Any) -> dict[str, Any]:
        """A request that can be answered."""
        dice = self._dice
        text = (
            " ".join(dice.choices(WORDS, k=dice.randrange(3, 4 + min(self._max_ctx // 24, 120))))
            + "?"
        )
        limit = dice.randrange(4, 40)
        body: dict[str, Any] = {"temperature": dice.choice([0, 0.8]), **more}
        if path == COMPLETIONS:
            return body | {"prompt": text, "max_tokens": limit}
        if path == RESPONSES:
            return body | {"instructions": self._system, "input": text, "max_output_tokens": limit}
        said = [{"role": "user", "content": text}]
        if dice.random() < 0.4:
            more_said = [{"role": "assistant", "content": "Well."}, said[0]]
            said = [{"role": "user", "content": "Tell me about the river."}, *more_said]
        if path == MESSAGES:
            return body | {"system": self._system, "messages": said, "max_tokens": limit}
        system = {"role": "system", "content": self._system}
        return body | {"messages": [system, *said], "max_tokens": limit}

    async def _streamed(self, path: str, *, late: float = 0.0) -> Told:
        options = {"include_usage": True}
        body = self._body(path, stream=True)
        if path in (CHAT, COMPLETIONS):
            body["stream_options"] = options
        began = time.perf_counter()
        async with ask(self._to, path, body) as reply:
            await _must_be(reply, 200)
            await asyncio.sleep(late)
            return await read_stream(path, reply, began)

    async def _whole(self) -> Told:
        async with ask(self._to, CHAT, self._body(CHAT)) as reply:
            await _must_be(reply, 200)
            told = await reply.json()
        if told["choices"][0]["finish_reason"] not in ("stop", "length"):
            raise Wrong(f"finish_reason {told['choices'][0]['finish_reason']!r}")
        return Told(result="answered", tokens=told["usage"]["completion_tokens"])

    async def _reads_late(self) -> Told:
        told = await self._streamed(CHAT, late=self._dice.uniform(0.5, 3))
        return Told(result=told.result, tokens=told.tokens)

    async def _leaves(self) -> Told:
        left = self._dice.randrange(1, 12)
        async with ask(self._to, CHAT, self._body(CHAT, stream=True)) as reply:
            await _must_be(reply, 200)
            async for _ in reply.pieces():
                left -= 1
                if not left:
                    break
        return Told(result="left")

    async def _leaves_at_once(self) -> Told:
        """With a request whole or not, before any answer."""
        body = json.dumps(self._body(CHAT, stream=self._dice.random() < 0.5)).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        await hang_up(self._to, request[: self._dice.choice([len(request), len(request) // 2])])
        return Told(result="left")

    async def _too_long(self) -> Told:
        words = " ".join(self._dice.choices(WORDS, k=self._max_ctx + 50))
        said = {"messages": [{"role": "user", "content": words}], "max_tokens": 8}
        path = self._dice.choice([CHAT, MESSAGES])
        async with ask(self._to, path, said | {"stream": self._dice.random() < 0.5}) as reply:
            return await _refused(reply, 400)

    async def _too_large(self) -> Told:
        async with ask(self._to, CHAT, b"{", headers={"content-length": str(2**40)}) as reply:
            return await _refused(reply, 413)

    async def _malformed(self) -> Told:
        path, body, status = self._dice.choice(_MALFORMED)
        async with ask(self._to, path, body) as reply:
            return await _refused(reply, status)

    async def _garbage(self) -> Told:
        async with send(self._to, self._dice.choice(_GARBAGE)) as reply:
            await reply.body()
        if not 400 <= reply.status < 500:
            raise Wrong(f"status {reply.status} for what is no HTTP")
        return Told(result=f"refused {reply.status}")


async def read_stream(path: str, reply: Reply, began: float) -> Told:
    """Read a stream to its end, which must be the vendor's."""
    first_s: float | None = None
    tokens: int | None = None
    name, data, error = "", "", ""
    async for name, data in reply.events():
        if data == "[DONE]":
            continue
        event = json.loads(data)
        if event.get("error") or name in ("error", "response.failed"):
            error = error or _code_of(event)
        if first_s is None and _has_text(path, name, event):
            first_s = time.perf_counter() - began
        told = _tokens(path, event)
        tokens = tokens if told is None else told
    ends = {MESSAGES: "message_stop", RESPONSES: ("response.completed", "response.incomplete")}
    if error:
        return Told(result=f"error {error}")
    if (path in ends and name not in ends[path]) or (path not in ends and data != "[DONE]"):
        raise Wrong(f"the stream ended with {name or data[:100]!r}")
    if tokens is None:
        raise Wrong("the stream told no usage")
    return Told(result="answered", tokens=tokens, first_s=first_s)


def _has_text(path: str, name: str, event: dict[str, Any]) -> bool:
    if path in (MESSAGES, RESPONSES):
        return name in ("content_block_delta", "response.output_text.delta")
    choice = (event.get("choices") or [{}])[0]
    return bool(choice.get("text") or (choice.get("delta") or {}).get("content"))


def _tokens(path: str, event: dict[str, Any]) -> int | None:
    """Tokens of the answer, where the event tells them."""
    owner = event.get("response") or {} if path == RESPONSES else event
    usage = owner.get("usage") or {}
    told: int | None = usage.get("completion_tokens", usage.get("output_tokens"))
    return told


async def _must_be(reply: Reply, status: int) -> None:
    if reply.status != status:
        text = (await reply.body())[:200].decode("utf-8", "replace")
        raise Wrong(f"status {reply.status} in place of {status}: {text}")


async def _refused(reply: Reply, status: int) -> Told:
    """It must be, with this status and an error that says why."""
    await _must_be(reply, status)
    told = await reply.json()
    error = told.get("error") or {}
    if not error.get("message"):
        raise Wrong(f"a refusal that says nothing: {json.dumps(told)[:200]}")
    return Told(result=f"refused {status} {error.get('code') or error.get('type')}")


def _code_of(event: dict[str, Any]) -> str:
    error = event.get("error") or (event.get("response") or {}).get("error") or {}
    return str(error.get("code") or error.get("type") or "unknown")
