"""StatusBoard: what is running and what has run, for status pages and metrics. No tensors.

Writers and readers share one event loop's thread, but for `trees`, which the engine's thread appends to;
nothing here blocks or grows without bound.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydflash.spec.stats import DraftStats

if TYPE_CHECKING:
    from pydflash.service.chat import ChatFinished

log = logging.getLogger(__name__)

Phase = Literal["idle", "prefill", "decode"]
_KEPT = 50  # finished requests in the history
_WAITING = 256  # notices to one watcher before the oldest are dropped
_EXCERPT = 160


@dataclass(slots=True, kw_only=True, eq=False)
class Running:
    """A request under way."""

    face: str
    streamed: bool
    prompt_excerpt: str
    prompt_tokens: int
    max_output: int
    temperature: float
    top_p: float
    top_k: int
    thinking: bool
    session: str | None
    messages: int
    completion_tokens: int = 0
    begun: float = field(default_factory=time.monotonic)
    draft_tokens: list[int] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        return {
            "prompt_excerpt": self.prompt_excerpt[:_EXCERPT],
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "stream": self.streamed,
            "elapsed_s": round(time.monotonic() - self.begun, 3),
            "draft_tokens": self.draft_tokens,
            "format": self.face,
            "max_output": self.max_output,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "thinking_enabled": self.thinking,
            "session_id": self.session,
            "messages": self.messages,
        }


@dataclass(slots=True)
class Totals:
    """Counted since the start."""

    requests: int = 0
    finished: dict[str, int] = field(default_factory=dict)  # by reason
    errors: dict[str, int] = field(default_factory=dict)  # by code
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    dropped_calls: int = 0
    draft: DraftStats = field(default_factory=DraftStats)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something for a watcher: a new status, or a piece of text as it was generated."""

    event: Literal["status", "token"]
    data: dict[str, Any]


class StatusBoard:
    """Kept by whoever answers requests."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.totals = Totals()
        self.running: list[Running] = []
        self.history: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self.trees: deque[dict[str, Any]] = deque(maxlen=8)  # the last draft trees, newest last
        self.cache: Callable[[], dict[str, int]] = dict  # pages of the context's memory, by use
        self.begun = time.monotonic()
        self.failure: str | None = None  # why the engine has stopped, if it has
        self._watchers: set[asyncio.Queue[Notice | None]] = set()

    @property
    def num_waiting(self) -> int:
        """Requests without a first token yet."""
        return sum(not running.completion_tokens for running in self.running)

    @property
    def phase(self) -> Phase:
        if not self.running:
            return "idle"
        return "decode" if any(r.completion_tokens for r in self.running) else "prefill"

    def begin(self, running: Running) -> None:
        self.totals.requests += 1
        self.running.append(running)
        self._status()

    def progress(self, running: Running, text: str, tokens: int) -> None:
        first = not running.completion_tokens and tokens
        running.completion_tokens += tokens
        if first:
            self._status()
        if text:
            self._tell(Notice("token", {"text": text, "tokens": tokens}))

    def finish(self, running: Running, finished: "ChatFinished | None") -> None:
        """The end of a request; None if it failed or its client left."""
        self.running.remove(running)
        if finished is None:
            self._count(self.totals.finished, "abort")
        else:
            self._count(self.totals.finished, finished.reason)
            self._add(finished)
        _note(running, finished)
        self._status()

    def error(self, code: str) -> None:
        """A request was refused or failed."""
        self._count(self.totals.errors, code)

    def record(self) -> dict[str, Any]:
        """The status as `/status/json` gives it."""
        current = self.running[-1].record() | {"model": self.model} if self.running else None
        return {
            "phase": self.phase,
            "model": self.model,
            "total_requests": self.totals.requests,
            "live": len(self.running),
            "running": len(self.running) - self.num_waiting,
            "waiting": self.num_waiting,
            "uptime_s": round(time.monotonic() - self.begun, 1),
            "cache": self.cache(),
            "failure": self.failure,
            "current": current,
            "requests": [running.record() for running in self.running],
            "perf_history": list(self.history),
            "draft_trees": list(self.trees),
        }

    async def watch(self) -> AsyncGenerator[Notice, None]:
        """The status now, then what happens. A watcher that falls behind misses notices."""
        queue: asyncio.Queue[Notice | None] = asyncio.Queue(_WAITING)
        self._watchers.add(queue)
        try:
            yield Notice("status", self.record())
            while (notice := await queue.get()) is not None:
                yield notice
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """End every watch: an open page must not hold a server that stops."""
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    def _add(self, finished: "ChatFinished") -> None:
        usage, totals = finished.usage, self.totals
        totals.prompt_tokens += usage.prompt_tokens
        totals.cached_tokens += usage.cached_tokens
        totals.completion_tokens += usage.completion_tokens
        totals.reasoning_tokens += usage.reasoning_tokens
        if usage.draft is not None:
            totals.draft.merge(usage.draft)
        self.history.append(figures(finished))

    def _status(self) -> None:
        if self._watchers:
            self._tell(Notice("status", self.record()))

    def _tell(self, notice: Notice) -> None:
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(notice)

    @staticmethod
    def _count(counts: dict[str, int], key: str) -> None:
        counts[key] = counts.get(key, 0) + 1


def _note(running: Running, finished: "ChatFinished | None") -> None:
    """A line for the log."""
    fields = {
        "format": running.face,
        "stream": running.streamed,
        "session_id": running.session,
        "elapsed_s": round(time.monotonic() - running.begun, 3),
    }
    if finished is None:
        tokens = running.completion_tokens
        fields |= {"finish_reason": "abort", "completion_tokens": tokens}
        log.info("an answer was given up after %d tokens", tokens, extra={"fields": fields})
        return
    fields |= figures(finished)
    log.info(
        "answered %d tokens with %d at %.1f tokens per second",
        finished.usage.prompt_tokens,
        finished.usage.completion_tokens,
        finished.timings.decode_tps,
        extra={"fields": fields},
    )


def figures(finished: "ChatFinished") -> dict[str, Any]:
    """What an answer took, for the history and the log."""
    usage, timings, draft = finished.usage, finished.timings, finished.usage.draft
    accepted = draft.accepted_nodes / draft.nodes if draft and draft.nodes else None
    return {
        "prefill_tok_s": round(timings.prefill_tps, 1),
        "decode_tok_s": round(timings.decode_tps, 1),
        "accept_rate": None if accepted is None else round(accepted, 3),
        "acceptance_length": round(draft.acceptance_length, 3) if draft else None,
        "round_steps": round(draft.round_cost, 3) if draft else None,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cache_hit": usage.cached_tokens > 0,
        "spec_decode": draft is not None,
        "first_token_s": round(timings.first_token_s, 3),
        "finish_reason": finished.reason,
    }
