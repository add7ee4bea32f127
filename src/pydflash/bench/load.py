"""A load run: many clients at once for minutes, some of them rude, while the server's memory is watched.

What it must show is correctness (every visit ends as it should), memory that does not grow, and pages that
all come back. Throughput is told besides; it is the machine's mood as well.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pydflash.bench.http import Address, BadReply, ask
from pydflash.bench.live import LiveServer
from pydflash.bench.visits import Told, Visitor, Wrong

GROWTH = 0.05  # the most that resident memory may differ between the second and the last minute
_VISIT_S = 300.0  # for one visit, waiting for its turn included
_SETTLE_S = 30.0
_KEPT = 40  # what went wrong, told one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was to see from outside at a moment, `at_s` seconds after the start."""

    at_s: float
    resident: int | None
    live: int
    free_pages: int
    cached_pages: int
    used_pages: int


@dataclass(slots=True, kw_only=True)
class LoadFigures:
    """A whole run. `visits` counts results by kind of visit; `firsts` are seconds to the first text; `wrong`
    tells what must not be."""

    clients: int
    seconds: float
    visits: dict[str, Counter[str]] = field(default_factory=dict)
    tokens: int = 0
    answers: int = 0
    firsts: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    last: Sample | None = None  # once everybody has gone
    total_pages: int = 0

    @property
    def tok_s(self) -> float:
        """Tokens of whole answers a second; those of clients that left are not in it."""
        return self.tokens / (self.last.at_s if self.last else self.seconds)

    @property
    def num_wrong(self) -> int:
        """Visits that did not end as they should; `wrong` tells of the first ones."""
        return sum(results["wrong"] for results in self.visits.values())

    @property
    def errors(self) -> Counter[str]:
        """Answers that ended with an error, and refusals, by code."""
        counts: Counter[str] = Counter()
        for results in self.visits.values():
            counts.update({r: n for r, n in results.items() if r.startswith(("refused", "error"))})
        return counts

    def first_s(self, share: float) -> float | None:
        """Seconds to the first text that this share of the streams needed at most."""
        ordered = sorted(self.firsts)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else None

    def resident(self, begin_s: float, end_s: float) -> float | None:
        """Median of the resident bytes seen in a part of the run."""
        seen = [s.resident for s in self.samples if begin_s <= s.at_s < end_s and s.resident]
        return statistics.median(seen) if seen else None

    @property
    def growth(self) -> float | None:
        """The last minute's memory over the second's, less 1. None for runs too short to have both."""
        if self.seconds < 180:
            return None
        second, last = self.resident(60, 120), self.resident(self.seconds - 60, self.seconds)
        return last / second - 1 if second and last else None

    @property
    def findings(self) -> list[str]:
        """What is not as it must be, a sentence each."""
        found = []
        if self.wrong:
            found.append(f"{self.num_wrong} visits went wrong, the first: {self.wrong[0]}")
        if not self.answers:
            found.append("nothing was answered")
        if self.growth is not None and abs(self.growth) > GROWTH:
            found.append(f"memory in the last minute differs by {self.growth:+.1%}")
        last = self.last
        if last is None or last.live or last.used_pages:
            found.append(f"pages were not returned: {last}")
        elif last.free_pages + last.cached_pages != self.total_pages:
            found.append(f"{self.total_pages} pages at the start, at the end {last}")
        return found


def run_load(
    server: LiveServer,
    *,
    clients: int,
    seconds: float,
    seed: int = 0,
    tell: Callable[[LoadFigures], None] | None = None,
) -> LoadFigures:
    """Send `clients` clients to a server for so long. `tell` is shown the figures every ten seconds."""
    max_ctx = server.ask("/props")["default_generation_settings"]["n_ctx"]
    figures = LoadFigures(clients=clients, seconds=seconds)
    asyncio.run(_run(server, figures, max_ctx, seed, tell))
    return figures


async def _run(
    server: LiveServer,
    figures: LoadFigures,
    max_ctx: int,
    seed: int,
    tell: Callable[[LoadFigures], None] | None,
) -> None:
    began = time.monotonic()
    before = await _look(server, 0.0)
    figures.total_pages = before.free_pages + before.cached_pages + before.used_pages
    end = began + figures.seconds

    async def client(number: int) -> None:
        visitor = Visitor(server.address, Random(seed * 1000 + number), max_ctx)
        while time.monotonic() < end and server.is_alive:
            kind, visit = visitor.choose()
            _count(figures, kind, await _outcome(visit))

    async def watch() -> None:
        while (now := time.monotonic()) < end and server.is_alive:
            figures.samples.append(await _look(server, now - began))
            if tell is not None and len(figures.samples) % 10 == 0:
                tell(figures)
            await asyncio.sleep(1)

    await asyncio.gather(watch(), *(client(number) for number in range(figures.clients)))
    if not server.is_alive:
        figures.wrong.append("the server died: " + " | ".join(server.last_lines[-5:]))
        return
    until = time.monotonic() + _SETTLE_S
    while time.monotonic() < until:
        figures.last = await _look(server, time.monotonic() - began)
        if not figures.last.live and not figures.last.used_pages:
            break
        await asyncio.sleep(0.2)


async def _outcome(visit: Callable[[], Any]) -> Told | str:
    """What came of a visit, or a sentence about what went wrong."""
    try:
        async with asyncio.timeout(_VISIT_S):
            told: Told = await visit()
            return told
    except TimeoutError:
        return f"no end within {_VISIT_S:.0f} s"
    except (Wrong, BadReply, OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def _count(figures: LoadFigures, kind: str, told: Told | str) -> None:
    counts = figures.visits.setdefault(kind, Counter())
    if isinstance(told, str):
        counts["wrong"] += 1
        if len(figures.wrong) < _KEPT:
            figures.wrong.append(f"{kind}: {told}")
        return
    counts[told.result] += 1
    if told.result == "answered":
        figures.answers += 1
        figures.tokens += told.tokens
        if told.first_s is not None:
            figures.firsts.append(told.first_s)


async def _look(server: LiveServer, at_s: float) -> Sample:
    address: Address = server.address
    async with ask(address, "/status/json") as reply:
        status = await reply.json()
    cache = status["cache"]
    return Sample(
        at_s=at_s,
        resident=server.resident_bytes(),
        live=status["live"],
        free_pages=cache["free_pages"],
        cached_pages=cache["cached_pages"],
        used_pages=cache["used_pages"],
    )


def sparse(samples: Sequence[Sample], every_s: float) -> list[Sample]:
    """The first sample of each `every_s` seconds."""
    kept: dict[int, Sample] = {}
    for sample in samples:
        kept.setdefault(int(sample.at_s / every_s), sample)
    return list(kept.values())
