"""Inbox: what the engine's thread gives a request, to be read in an event loop.

The engine never waits: a reader that falls too far behind is told so and gets no more.
"""

import asyncio
import contextlib
from collections import deque

from pydflash.engine.request import StepResult
from pydflash.errors import EngineError

MOST = 4096  # results of steps that wait to be read


class Inbox:
    """Made and read in one event loop; `put` is for the engine's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[StepResult | EngineError] = deque()
        self._arrived = asyncio.Event()
        self._overflown = False

    def put(self, item: StepResult | EngineError) -> None:
        """Never blocks and never raises."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._arrive, item)

    async def get(self) -> list[StepResult | EngineError]:
        """Everything that has come since, at least one."""
        await self._arrived.wait()
        items = list(self._items)
        self._items.clear()
        self._arrived.clear()
        if self._overflown:
            items.append(EngineError("the answer was ended: its reader fell too far behind"))
        return items

    def _arrive(self, item: StepResult | EngineError) -> None:
        if len(self._items) >= MOST:
            self._overflown = True
        if not self._overflown:
            self._items.append(item)
        self._arrived.set()
