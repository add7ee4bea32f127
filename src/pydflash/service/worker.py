"""Worker: the one thread that drives the engine. Requests go in by a queue, results come out by one each.

A reader that falls behind or goes away never holds the engine; a crash reaches every open request.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydflash.engine.engine import Engine
from pydflash.engine.request import Request, StepResult
from pydflash.errors import EngineError
from pydflash.service.thread import EngineThread

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Ticket:
    """A request under way: read `results` until one is finished or an error.

    With a `listener` the results go to it instead, on the engine's thread; it must not block or raise.
    """

    request: Request
    listener: "Callable[[StepResult | EngineError], None] | None" = None
    results: "queue.SimpleQueue[StepResult | EngineError]" = field(
        default_factory=queue.SimpleQueue
    )

    def deliver(self, result: "StepResult | EngineError") -> None:
        (self.listener or self.results.put)(result)


class Worker:
    """Owns the engine after construction."""

    def __init__(
        self, engine: Engine, thread: EngineThread | None = None, *, coalesce_s: float = 0.0
    ) -> None:
        """`thread`: the one on which the engine was built, if it has one of its own. `coalesce_s`: how long
        an idle engine waits for more after a first request, for their prompts to share steps."""
        self._engine = engine
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._coalesce_s = coalesce_s
        self._open: dict[int, Ticket] = {}
        self._dead: EngineError | None = None
        self._lock = threading.Lock()
        self._thread = thread or EngineThread()
        self._thread.post(self._run)

    @property
    def failure(self) -> EngineError | None:
        """Why the engine has stopped, if it has."""
        return self._dead

    def submit(
        self,
        request: Request,
        listener: "Callable[[StepResult | EngineError], None] | None" = None,
    ) -> Ticket:
        """Start a request. Raises RequestError at once for one that cannot be answered."""
        self._engine.check(request)
        ticket = Ticket(request, listener)
        with self._lock:
            if self._dead is not None:
                raise EngineError(f"the engine has stopped: {self._dead}") from self._dead
            self._open[request.id] = ticket
        self._inbox.put(lambda: self._add(request))
        return ticket

    def abort(self, ticket: Ticket) -> None:
        """Stop a request; harmless when it is over."""
        self._inbox.put(lambda: self._abort(ticket))

    def forget(self) -> None:
        """Drop what finished requests left for others to start from."""
        self._inbox.put(self._engine.states.forget)

    def close(self) -> None:
        """End every open request and stop the thread."""
        self._inbox.put(None)
        self._thread.close()

    def _run(self) -> None:
        try:
            while self._serve():
                pass
            self._fail(EngineError("the engine was closed"))
        except BaseException as error:
            log.exception("the engine failed")
            failure = EngineError(f"the engine failed: {error!r}")
            failure.__cause__ = error
            self._fail(failure)

    def _serve(self) -> bool:
        """Take messages, then a step. False when asked to close."""
        waits = self._engine.is_idle and self._coalesce_s > 0
        while self._engine.is_idle or not self._inbox.empty():
            message = self._inbox.get()
            if message is None:
                return False
            message()
            if waits and not self._engine.is_idle:
                waits = False
                time.sleep(self._coalesce_s)
        for result in self._engine.step():
            self._deliver(result)
        return True

    def _add(self, request: Request) -> None:
        self._engine.add(request)

    def _abort(self, ticket: Ticket) -> None:
        sequence = self._engine.abort(ticket.request.id)
        if sequence is not None:
            self._deliver(StepResult.of(sequence))

    def _deliver(self, result: StepResult) -> None:
        ticket = self._open[result.sequence.request.id]
        if result.finished:
            with self._lock:
                del self._open[ticket.request.id]
        ticket.deliver(result)

    def _fail(self, error: EngineError) -> None:
        with self._lock:
            self._dead = error
            left = list(self._open.values())
            self._open.clear()
        for ticket in left:
            ticket.deliver(error)
