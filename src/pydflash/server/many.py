"""many: the events of several answers as one stream, for requests with more than one choice."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pydflash.server.wire import Events, begin
from pydflash.service.chat import Chat, ChatEvent, ChatReply, ChatRequest, folded

_AHEAD = 64  # events read ahead of a reader


async def begin_all(service: Chat, requests: Sequence[ChatRequest]) -> list[Events]:
    """Start the answer of every choice. Raises RequestError, and then none goes on."""
    streams: list[Events] = []
    try:
        for request in requests:
            streams.append((await begin(service, request))[1])
    except BaseException:
        for stream in streams:
            await stream.aclose()
        raise
    return streams


async def many(streams: Sequence[Events]) -> AsyncGenerator[tuple[int, ChatEvent], None]:
    """(index of the stream, event) as they come. Closes all of them however it ends.

    Raises what the first failing one raises.
    """
    try:
        if len(streams) == 1:
            async for event in streams[0]:
                yield 0, event
            return
        queue: asyncio.Queue[tuple[int, ChatEvent] | Exception | None] = asyncio.Queue(_AHEAD)
        tasks = [asyncio.create_task(_pump(i, s, queue)) for i, s in enumerate(streams)]
        try:
            going = len(tasks)
            while going:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    going -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for stream in streams:
            await stream.aclose()


async def fold_all(streams: Sequence[Events]) -> list[ChatReply]:
    """The whole replies. Raises what the first failing stream raises, and closes the others."""
    told: list[list[ChatEvent]] = [[] for _ in streams]
    async with aclosing(many(streams)) as events:
        async for index, event in events:
            told[index].append(event)
    return [folded(events) for events in told]


async def _pump(
    index: int,
    events: Events,
    queue: "asyncio.Queue[tuple[int, ChatEvent] | Exception | None]",
) -> None:
    try:
        async for event in events:
            await queue.put((index, event))
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)
