"""Tokens per second of reading a prompt and of writing an answer, in turn with a peer if there is one."""

import time
from dataclasses import dataclass
from typing import Any

from pydflash.bench.harness import Rig
from pydflash.bench.peer import PeerProcess
from pydflash.bench.report import Samples, ratio
from pydflash.bench.step import PAUSE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFigure:
    """`name` is "prefill" or "decode"; samples are seconds for `tokens` tokens."""

    name: str
    tokens: int
    ours: Samples
    theirs: Samples | None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "name": self.name,
            "tokens": self.tokens,
            "ours": self._side(self.ours),
        }
        if self.theirs is not None:
            out["llama.cpp"] = self._side(self.theirs)
            out["ratio"] = ratio(self.ours, self.theirs)
            out["speedup"] = {name: 1 / value for name, value in out["ratio"].items()}
        return out

    def _side(self, samples: Samples) -> dict[str, Any]:
        rates = {
            "best_tok_s": self.tokens / samples.best,
            "median_tok_s": self.tokens / samples.median,
        }
        return samples.to_json() | rates


def measure_speed(
    rig: Rig,
    peer: PeerProcess | None,
    *,
    prompt: int,
    answer: int,
    depth: int,
    rounds: int = 5,
) -> list[SpeedFigure]:
    """Read `prompt` tokens, and write `answer` tokens after `depth` stored ones, `rounds` times a side."""
    prefill: tuple[list[float], list[float]] = ([], [])
    decode: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds + 1):
        for side, subject in enumerate((rig, peer)):
            if subject is None:
                continue
            time.sleep(PAUSE_S)
            read, wrote = subject.prefill(prompt), subject.decode(answer, depth)
            if i:  # the first round warms caches and allocators
                prefill[side].append(read)
                decode[side].append(wrote)
    return [
        SpeedFigure(
            name=name,
            tokens=tokens,
            ours=Samples(tuple(times[0])),
            theirs=Samples(tuple(times[1])) if times[1] else None,
        )
        for name, tokens, times in (("prefill", prompt, prefill), ("decode", answer, decode))
    ]
