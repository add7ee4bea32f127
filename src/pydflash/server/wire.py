"""Streams on the wire: server-sent events kept alive, and requests whose client has left.

Invariant: however a reply ends (told to its end, client gone, client stalled, server stopping), its
events are closed, which aborts the request behind them.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pydflash.errors import EngineError, PydflashError
from pydflash.service.chat import Chat, ChatEvent, ChatRequest, ChatStarted
from pydflash.text.json_text import compact

log = logging.getLogger(__name__)

LEFT = 499  # the status of a reply that nobody waits for any more
KEEP_ALIVE_S = 15.0
STALL_S = 30.0  # a client that takes nothing for so long is dropped
_KEEP_ALIVE = b": keep-alive\n\n"

T = TypeVar("T")
Frames = AsyncGenerator[str, None]
Events = AsyncGenerator[ChatEvent, None]


def frame(data: Any, event: str | None = None) -> str:
    """One server-sent event. `data` is JSON unless it is a string already."""
    text = data if isinstance(data, str) else compact(data)
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return (f"event: {event}\n" if event else "") + lines + "\n"


async def begin(service: Chat, request: ChatRequest) -> tuple[ChatStarted, Events]:
    """Start an answer: what was accepted, and the events that follow.

    Raises RequestError while a status can still be sent. Close the events (`aclosing`) in every case.
    """
    events = service.stream(request)
    try:
        started = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    assert isinstance(started, ChatStarted)
    return started, events


class Reply(Protocol):
    """A vendor's stream that keeps the reply it amounts to."""

    def feed(self, event: ChatEvent) -> Iterator[dict[str, Any]]: ...


async def take_whole(service: Chat, request: ChatRequest, reply: Reply) -> None:
    """Run a request to its end: the reply then is the fold of its stream."""
    async with aclosing(service.stream(request)) as events:
        async for event in events:
            for _ in reply.feed(event):
                pass


async def frames_of(
    reply: Reply, started: ChatStarted, events: Events
) -> AsyncGenerator[str, None]:
    """The stream's frames, each named by its type."""
    async with aclosing(events):
        for wire in reply.feed(started):
            yield frame(wire, wire["type"])
        async for event in events:
            for wire in reply.feed(event):
                yield frame(wire, wire["type"])


class EventStream(Response):
    """Sends frames as they come, and closes the events that they are made of.

    `failed` makes the last frames of an error that comes when the reply has begun.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: Frames,
        events: Sequence[Events] = (),
        failed: Callable[[PydflashError], Iterable[str]] | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames
        self._events = events
        self._failed = failed or (lambda error: ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.ensure_future(_left(receive))
        try:
            async with aclosing(self._frames):
                start = {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
                if await self._send(send, start, left):
                    await self._pump(send, left)
        finally:
            left.cancel()
            for events in self._events:  # frames that never began have closed nothing
                await events.aclose()

    async def _pump(self, send: Send, left: "asyncio.Future[None]") -> None:
        step: asyncio.Future[str | None] | None = None
        try:
            while True:
                step = step or asyncio.ensure_future(self._next())
                waited: set[asyncio.Future[Any]] = {step, left}
                await asyncio.wait(
                    waited, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if left.done():
                    return
                body = _KEEP_ALIVE
                if step.done():
                    text, step = step.result(), None
                    if text is None:
                        await self._send(send, _chunk(b"", more=False), left)
                        return
                    body = text.encode("utf-8", "replace")
                if not await self._send(send, _chunk(body), left):
                    return
        except PydflashError as error:
            log.warning("a stream ended with an error: %s", error)
            tail = "".join(self._failed(error)).encode("utf-8", "replace")
            await self._send(send, _chunk(tail, more=False), left)
        finally:
            if step is not None:
                step.cancel()
                await asyncio.wait({step})

    async def _next(self) -> str | None:
        try:
            return await anext(self._frames, None)
        except (PydflashError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("a stream failed")
            raise EngineError("an internal error; the server's log has it") from error

    @staticmethod
    async def _send(send: Send, message: dict[str, Any], left: "asyncio.Future[None]") -> bool:
        """False if the client has gone, or takes nothing any more."""
        sending = asyncio.ensure_future(_awaited(send(message)))
        done, _ = await asyncio.wait(
            {sending, left}, timeout=STALL_S, return_when=asyncio.FIRST_COMPLETED
        )
        if sending not in done:
            sending.cancel()
            await asyncio.wait({sending})
            return False
        try:
            sending.result()
        except OSError:
            return False
        return True


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None if the client left before, and then the work is cancelled."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        left.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _chunk(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}
