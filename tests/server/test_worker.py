"""Worker: what an idle engine waits for before its first step."""

import threading
import time
from typing import Any

import pytest

from pydflash.engine.request import Request, Sequence, StepResult
from pydflash.sampling.params import SamplingParams
from pydflash.service.worker import Worker


class OneStep:
    """An engine whose every answer is one step long; it notes how many requests each step had."""

    def __init__(self) -> None:
        self.states = self
        self.waiting: list[Request] = []
        self.steps: list[int] = []

    @property
    def is_idle(self) -> bool:
        return not self.waiting

    def check(self, request: Request) -> None:
        pass

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def step(self) -> list[StepResult]:
        self.steps.append(len(self.waiting))
        ended = [
            Sequence(request=r, max_tokens=1, tokens=[1], finish="length") for r in self.waiting
        ]
        self.waiting.clear()
        return [StepResult.of(sequence) for sequence in ended]


def steps_of(coalesce_s: float, gap_s: float) -> list[int]:
    engine: Any = OneStep()
    worker = Worker(engine, coalesce_s=coalesce_s)
    done = threading.Semaphore(0)
    try:
        for _ in range(3):
            request = Request(prompt=(1,), params=SamplingParams(), seed=0)
            worker.submit(request, lambda result: done.release())
            time.sleep(gap_s)
        for _ in range(3):
            assert done.acquire(timeout=20)
    finally:
        worker.close()
    return engine.steps


@pytest.mark.parametrize(
    ("coalesce_s", "gap_s", "steps"), [(2.0, 0.05, [3]), (0.0, 0.5, [1, 1, 1])]
)
def test_an_idle_engine_waits_as_long_as_it_is_told(
    coalesce_s: float, gap_s: float, steps: list[int]
) -> None:
    assert steps_of(coalesce_s, gap_s) == steps
