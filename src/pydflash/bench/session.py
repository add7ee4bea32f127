"""Session: requests of one engine, stepped by hand so that single steps can be timed."""

import time
from collections.abc import Sequence as Many
from types import TracebackType

from pydflash.engine.engine import Engine
from pydflash.engine.request import Request, Sequence
from pydflash.errors import EngineError
from pydflash.kernels.upload import wait
from pydflash.sampling.params import SamplingParams


class Session:
    """Greedy answers of `count` tokens to several prompts at once; what is left is aborted at the end."""

    def __init__(
        self, engine: Engine, prompts: Many[Many[int]], count: int, *, speculate: bool = False
    ) -> None:
        self._engine = engine
        params = SamplingParams(max_tokens=count, ignore_eos=True, temperature=0.0)
        self.sequences: list[Sequence] = [
            engine.add(Request(prompt=tuple(p), params=params, seed=0, speculate=speculate))
            for p in prompts
        ]

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for sequence in self.sequences:
            self._engine.abort(sequence.request.id)

    @property
    def is_whole(self) -> bool:
        """No sequence has ended."""
        return all(s.finish is None for s in self.sequences)

    def read(self) -> None:
        """Until every prompt is read and has its first token."""
        while not all(s.num_generated for s in self.sequences):
            self.step()

    def step(self, *, to_idle: bool = True) -> tuple[float, int]:
        """Seconds of one step, to an idle device or (as in a server) until the next may begin, and the
        tokens that it gave."""
        began = time.perf_counter()
        results = self._engine.step()
        if to_idle:
            wait(self._engine.graphs.device)
        seconds = time.perf_counter() - began
        for result in results:
            if result.error is not None:
                raise EngineError(f"the bench run stopped: {result.error}")
        return seconds, sum(len(result.draws) for result in results)

    def steps(self, most: int, *, to_idle: bool = True) -> tuple[list[float], int]:
        """Seconds of each of at most `most` steps, none of which ends a sequence, and tokens of all."""
        times: list[float] = []
        tokens = 0
        while len(times) < most and self.is_whole:
            seconds, drawn = self.step(to_idle=to_idle)
            if not self.is_whole:
                break
            times.append(seconds)
            tokens += drawn
        return times, tokens
