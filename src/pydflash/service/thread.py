"""EngineThread: the one thread on which a model is loaded and run.

OpenMP keeps a team of threads for every thread that ever ran a parallel region. With two teams on a machine
libgomp finds more threads than cores, stops spinning between regions and sleeps instead, and every region
of a token begins with a wake-up. So whatever runs kernels, loading included, runs here.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class EngineThread:
    """Runs what it is given, one after another. A daemon: it never keeps a process alive."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pydflash-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """The function's result, or what it raised."""
        answer: queue.SimpleQueue[tuple[bool, object]] = queue.SimpleQueue()

        def job() -> None:
            try:
                answer.put((True, function()))
            except BaseException as error:
                answer.put((False, error))

        self.post(job)
        good, result = answer.get()
        if not good:
            assert isinstance(result, BaseException)
            raise result
        return result  # type: ignore[return-value]

    def post(self, function: Callable[[], None]) -> None:
        """Run it without waiting; it must not raise."""
        self._jobs.put(function)

    def close(self, *, wait: bool = True) -> None:
        """End the thread once everything posted is done; `wait` for that."""
        self._jobs.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
