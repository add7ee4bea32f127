"""The one stream of events that every face reads. No tensors."""

from dataclasses import dataclass, field
from typing import Literal

from pydflash.spec.stats import DraftStats

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Natural-log probability of a token, and the best alternatives (token id, log-probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds of prompt processing and of decoding, and the rates people ask for (tokens per second)."""

    prefill_s: float
    decode_s: float
    prefill_tps: float
    decode_tps: float
    first_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of the answer: whole characters only, and the tokens that made it."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a stream. `stop` says which stop string or token ended it, if one did.

    `draft` says how its drafts fared; None where nothing could be drafted.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    stop: str | int | None = None
    tokens: tuple[int, ...] = field(default=())
    draft: DraftStats | None = None


Event = TextDelta | Finished
