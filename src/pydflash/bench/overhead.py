"""What HTTP costs: the same tokens written by the engine in this process and streamed by a server."""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

from pydflash.bench.harness import Rig
from pydflash.bench.http import ask
from pydflash.bench.live import LiveServer
from pydflash.bench.llama_cpp import pattern
from pydflash.bench.step import PAUSE_S
from pydflash.bench.visits import COMPLETIONS
from pydflash.errors import EngineError

LEAST = 0.95  # of the engine's tokens per second that a client of the server must see


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Seconds for the same `tokens` tokens, round by round: by the engine alone, and over HTTP."""

    tokens: int
    depth: int
    engine_s: tuple[float, ...]
    http_s: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Tokens per second over HTTP, of the engine's, in each round."""
        return [e / h for e, h in zip(self.engine_s, self.http_s, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "depth": self.depth,
            "engine_s": [round(s, 6) for s in self.engine_s],
            "http_s": [round(s, 6) for s in self.http_s],
            "engine_tok_s": self.tokens / statistics.median(self.engine_s),
            "http_tok_s": self.tokens / statistics.median(self.http_s),
            "ratios": [round(r, 4) for r in self.ratios],
            "ratio": self.ratio,
            "least": LEAST,
        }


def measure_overhead(
    rig: Rig, server: LiveServer, *, answer: int, depth: int, rounds: int
) -> Overhead:
    """Write `answer` greedy tokens after `depth` and the first, `rounds` times a side, sides in turn.

    Neither side drafts. The first round warms caches and is not counted.
    """
    engine: list[float] = []
    http: list[float] = []
    for i in range(rounds + 1):
        pair = [0.0, 0.0]
        for side in (0, 1) if i % 2 else (1, 0):
            time.sleep(PAUSE_S)
            pair[side] = (
                asyncio.run(_streamed(server, pattern(depth, 0, rig.vocab_size), answer + 1))
                if side
                else rig.decode(answer, depth)
            )
        if i:
            engine.append(pair[0])
            http.append(pair[1])
    return Overhead(tokens=answer, depth=depth, engine_s=tuple(engine), http_s=tuple(http))


async def _streamed(server: LiveServer, prompt: list[int], count: int) -> float:
    """Seconds from the first text to the last: the first token's and the last one's, unless a token is
    but a part of a character, as few are."""
    body = {
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "speculate": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    times: list[float] = []
    tokens = 0
    async with ask(server.address, COMPLETIONS, body) as reply:
        if reply.status != 200:
            raise EngineError(f"the server refused: {(await reply.body())[:200]!r}")
        async for _, data in reply.events():
            if data == "[DONE]":
                continue
            event = json.loads(data)
            tokens = (event.get("usage") or {}).get("completion_tokens", 0)
            if event["choices"] and event["choices"][0]["text"]:
                times.append(time.perf_counter())
    if tokens != count or 3 * len(times) < count:
        raise EngineError(
            f"{len(times)} events for {tokens} of {count} tokens: this model writes what has no text, "
            "and its tokens cannot be timed from outside"
        )
    return times[-1] - times[0]
