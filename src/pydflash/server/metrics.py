"""/metrics: the board's totals in Prometheus' form, read when asked for."""

from collections.abc import Iterator

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from pydflash.service.status import StatusBoard

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Requests, queue, tokens, drafts, cache and errors since the start."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Board(request.app.state.service.board))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Board(Collector):
    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        totals = self._board.totals
        waiting = self._board.num_waiting
        live = len(self._board.running) - waiting
        yield _gauge("requests_decoding", "Requests that are being answered", live)
        yield _gauge("requests_waiting", "Requests without a first token yet", waiting)
        yield _counter("requests", "Requests accepted", totals.requests)
        yield _by("requests_finished", "Requests ended", "reason", totals.finished)
        yield _by("errors", "Requests refused or failed", "code", totals.errors)
        yield _counter("prompt_tokens", "Tokens of prompts", totals.prompt_tokens)
        yield _counter("cached_tokens", "Prompt tokens found in the cache", totals.cached_tokens)
        yield _counter("completion_tokens", "Tokens generated", totals.completion_tokens)
        yield _counter("reasoning_tokens", "Of them, tokens of thoughts", totals.reasoning_tokens)
        yield _counter(
            "dropped_calls", "Texts in a call's form that were none", totals.dropped_calls
        )
        draft = totals.draft
        yield _counter("draft_rounds", "Steps that decoded", draft.rounds)
        yield _counter("draft_nodes", "Tokens drafted", draft.nodes)
        yield _counter("draft_accepted", "Drafted tokens accepted", draft.accepted_nodes)
        yield _gauge("acceptance_length", "Tokens a round", draft.acceptance_length)
        yield _gauge("round_step_ratio", "A round's time in one-token steps", draft.round_cost)
        pages = GaugeMetricFamily("pydflash_pages", "Pages of the context's memory", labels=["use"])
        for use, count in self._board.cache().items():
            pages.add_metric([use.removesuffix("_pages")], count)
        yield pages
        failed = float(self._board.failure is not None)
        yield _gauge("engine_failed", "1 when the engine has stopped", failed)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"pydflash_{name}", help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"pydflash_{name}", help_text, value=value)


def _by(name: str, help_text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"pydflash_{name}", help_text, labels=[label])
    for key, value in counts.items():
        family.add_metric([key], value)
    return family
