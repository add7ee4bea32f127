"""How much sooner the second turn of a long conversation begins: what the prefix cache is worth."""

import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from pydflash.bench.http import ask
from pydflash.bench.live import LiveServer
from pydflash.bench.visits import CHAT, WORDS
from pydflash.errors import EngineError

LEAST = 5.0  # times sooner that a second turn must begin
_ASK = " Which of these words is the shortest?"
_THEN = "And which is the longest?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """One conversation: seconds from the request to the first text, of its first and its second turn."""

    prompt_tokens: int
    cached_tokens: int  # of the second turn's prompt
    first_s: float
    second_s: float

    @property
    def sooner(self) -> float:
        return self.first_s / self.second_s

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"sooner": self.sooner}


def sooner(all_turns: list[Turns]) -> float:
    """The median of the conversations' own ratios."""
    return statistics.median(turns.sooner for turns in all_turns)


def measure_turns(
    server: LiveServer, *, tokens: int, rounds: int, answer: int = 16, seed: int = 0
) -> list[Turns]:
    """Hold `rounds` conversations of two turns; the first message of each has `tokens` tokens of its own."""
    dice = Random(seed)
    return [
        asyncio.run(_converse(server, _words(server, dice, tokens), answer)) for _ in range(rounds)
    ]


def _words(server: LiveServer, dice: Random, tokens: int) -> str:
    """Words that are so many tokens."""
    text = " ".join(dice.choices(WORDS, k=tokens))
    count = server.ask("/tokenize", {"content": text})["count"]
    words = text.split()
    return " ".join(words[: len(words) * tokens // count]) + "." + _ASK


async def _converse(server: LiveServer, question: str, answer: int) -> Turns:
    said = [{"role": "user", "content": question}]
    first_s, text, usage = await _turn(server, said, answer)
    said += [{"role": "assistant", "content": text}, {"role": "user", "content": _THEN}]
    second_s, _, again = await _turn(server, said, answer)
    return Turns(
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=again["prompt_tokens_details"]["cached_tokens"],
        first_s=first_s,
        second_s=second_s,
    )


async def _turn(
    server: LiveServer, said: list[dict[str, str]], answer: int
) -> tuple[float, str, dict[str, Any]]:
    """Seconds to the first text, the answer and its usage."""
    body = {
        "messages": said,
        "max_tokens": answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_s = 0.0
    text: list[str] = []
    usage: dict[str, Any] = {}
    began = time.perf_counter()
    async with ask(server.address, CHAT, body) as reply:
        if reply.status != 200:
            raise EngineError(f"the server refused: {(await reply.body())[:200]!r}")
        told = reply.events()
        async for event in (json.loads(data) async for _, data in told if data != "[DONE]"):
            usage = event.get("usage") or usage
            piece = (event["choices"] or [{"delta": {}}])[0]["delta"].get("content")
            if piece:
                first_s = first_s or time.perf_counter() - began
                text.append(piece)
    if not text:
        raise EngineError("the answer has no text, so its beginning cannot be timed; ask for more")
    return first_s, "".join(text), usage
