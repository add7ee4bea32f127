"""Answer: one request's tokens turned into events: text, stop strings, log-probabilities, the end."""

from collections.abc import Generator, Iterator

from pydflash.engine.request import Sequence, StepResult
from pydflash.errors import EngineError
from pydflash.sampling.draw import Draw
from pydflash.service.events import Event, Finished, TextDelta, Timings, TokenLogprob, Usage
from pydflash.service.worker import Ticket, Worker
from pydflash.text.detokenizer import Detokenizer
from pydflash.text.stops import StopMatcher
from pydflash.text.tokenizer import Tokenizer


class Answer(Iterator[Event]):
    """TextDelta while there is text, then one Finished. Closed or dropped early, it aborts the request.

    Raises EngineError if the engine fails.
    """

    def __init__(self, worker: Worker, ticket: Ticket, tokenizer: Tokenizer) -> None:
        self._worker = worker
        self._ticket = ticket
        # NOTE: the generator must not know `self`: a cycle would keep a dropped answer running.
        self._events = _Reader(worker, ticket, tokenizer).events()

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Stop listening; the request is aborted if it is still running."""
        self._events.close()
        self._worker.abort(self._ticket)

    def __del__(self) -> None:
        self._worker.abort(self._ticket)


class _Reader:
    """Reads a ticket's results and turns them into events."""

    def __init__(self, worker: Worker, ticket: Ticket, tokenizer: Tokenizer) -> None:
        self._worker = worker
        self._ticket = ticket
        self._decoder = Detokenizer(tokenizer, skip_special=True, continuing=True)
        self._stops = StopMatcher(ticket.request.params.stop)
        self._tokens: list[int] = []

    def events(self) -> Generator[Event, None, None]:
        while True:
            result = self._next()
            if result.error is not None:
                raise result.error
            stop = yield from self._text(result)
            if stop is not None and not result.finished:
                self._worker.abort(self._ticket)
                while not result.finished:
                    result = self._next()
            if result.finished:
                yield self._finished(result, stop)
                return

    def _next(self) -> StepResult:
        result = self._ticket.results.get()
        if isinstance(result, EngineError):
            raise result
        return result

    def _text(self, result: StepResult) -> Generator[Event, None, str | None]:
        """Yield what a step adds; return the stop string that ended it, if one did."""
        hit: str | None = None
        for draw in result.draws:
            if draw.token == result.stop_token:
                break
            self._tokens.append(draw.token)
            emit, hit = self._stops.push(self._decoder.push(draw.token))
            yield TextDelta(text=emit, tokens=(draw.token,), logprobs=_logprobs(draw))
            if hit is not None:
                return hit
        if result.finished:
            emit, hit = self._stops.push(self._decoder.flush())
            rest, late = ("", None) if hit is not None else self._stops.flush()
            hit = hit or late
            if emit + rest:
                yield TextDelta(text=emit + rest)
        return hit

    def _finished(self, result: StepResult, stop: str | None) -> Finished:
        sequence, n = result.sequence, len(self._tokens)
        reason = "stop" if stop is not None else result.finish
        assert reason is not None
        assert reason != "error"
        return Finished(
            reason=reason,
            usage=Usage(
                prompt_tokens=sequence.num_prompt,
                completion_tokens=n,
                cached_tokens=sequence.cached,
            ),
            timings=timings_of(sequence, n),
            seed=sequence.request.seed,
            stop=stop if stop is not None else result.stop_token,
            tokens=tuple(self._tokens),
            draft=sequence.draft if sequence.draft.rounds else None,
        )


def timings_of(sequence: Sequence, tokens: int) -> Timings:
    """How long a finished sequence of so many new tokens took."""
    clock = sequence.clock
    prefill_s = max(clock.first_token - clock.started, 0.0)
    decode_s = max(clock.finished - clock.first_token, 0.0)
    fresh = sequence.num_prompt - sequence.cached
    return Timings(
        prefill_s=prefill_s,
        decode_s=decode_s,
        prefill_tps=fresh / prefill_s if prefill_s else 0.0,
        # The first token comes out of the prompt's own pass.
        decode_tps=(tokens - 1) / decode_s if decode_s and tokens > 1 else 0.0,
        first_token_s=max(clock.first_token - clock.added, 0.0),
    )


def _logprobs(draw: Draw) -> tuple[TokenLogprob, ...]:
    if draw.logprob is None:
        return ()
    return (TokenLogprob(token=draw.token, logprob=draw.logprob, top=draw.top),)
