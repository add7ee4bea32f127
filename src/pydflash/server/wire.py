"""Streams on the wire: server-sent events kept alive, and requests whose client has left.

Invariant: however a reply ends (told to its end, client gone, client stalled, server stopping), its
events are closed, which aborts the request behind them.
"""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, suppress
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
        line = _Line(send)
        telling = asyncio.ensure_future(self._tell(line))
        # No task for a frame: at hundreds of tokens a second they are what a stream costs.
        ends = {telling, *map(asyncio.ensure_future, (_left(receive), line.watch()))}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            await asyncio.wait(ends)
            for events in self._events:  # frames that never began have closed nothing
                await events.aclose()
        if not telling.cancelled():
            telling.result()

    async def _tell(self, line: "_Line") -> None:
        """All frames, one after the other, then what follows an error if one comes."""
        tail = ""
        try:
            async with aclosing(self._frames) as frames:
                start = {"status": self.status_code, "headers": self.raw_headers}
                await line.send({"type": "http.response.start", **start})
                async for text in frames:
                    await line.send(_chunk(text.encode("utf-8", "replace")))
        except _GoneError:
            return
        except PydflashError as error:
            log.warning("a stream ended with an error: %s", error)
            tail = "".join(self._failed(error))
        except Exception:
            log.exception("a stream failed")
            lost = EngineError("an internal error; the server's log has it")
            tail = "".join(self._failed(lost))
        with suppress(_GoneError):
            await line.send(_chunk(tail.encode("utf-8", "replace"), more=False))


class _GoneError(Exception):
    """Nobody is at the other end of the line."""


class _Line:
    """To one client. It is kept alive while nothing is said, and given up when the client takes nothing."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._since = asyncio.get_running_loop().time()  # when something was last given or taken

    async def send(self, message: dict[str, Any]) -> None:
        """Raises _GoneError if the client has left."""
        async with self._turn:
            self._since = asyncio.get_running_loop().time()
            try:
                await self._send(message)
            except OSError:
                raise _GoneError from None
            self._since = asyncio.get_running_loop().time()

    async def watch(self) -> None:
        """Send comments into silence. Returns when the client has left or is stuck."""
        loop = asyncio.get_running_loop()
        while True:
            stuck = self._turn.locked()
            wait = self._since + (STALL_S if stuck else KEEP_ALIVE_S) - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            elif stuck:
                return
            else:
                try:
                    async with asyncio.timeout(STALL_S):
                        await self.send(_chunk(_KEEP_ALIVE))
                except (TimeoutError, _GoneError):
                    return


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


def _chunk(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}
