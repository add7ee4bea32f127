"""The sampling flags that `run` and `chat` share, and the SamplingParams they mean.

A field here has the name of the SamplingParams field it sets; only `choice` has no flag.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydflash.config import option
from pydflash.errors import ConfigError, RequestError
from pydflash.sampling.params import SamplingParams

_DEFAULT = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """What the command line calls SamplingParams' fields."""

    max_tokens: int = option(512, "tokens to generate at most; 0 means up to the context")
    min_tokens: int = option(_DEFAULT.min_tokens, "tokens to generate before the answer may end")
    temperature: float = option(
        _DEFAULT.temperature, "randomness; 0 takes the best token", flag="--temp"
    )
    top_k: int = option(_DEFAULT.top_k, "draw among the k best tokens; 0 means all")
    top_p: float = option(_DEFAULT.top_p, "draw among the best tokens of this total probability")
    min_p: float = option(
        _DEFAULT.min_p, "drop tokens below this share of the best one's probability"
    )
    seed: int | None = option(None, "seed of the draws; drawn and reported when not given")
    repetition_penalty: float = option(
        _DEFAULT.repetition_penalty, "divide the logits of repeated tokens", flag="--repeat-penalty"
    )
    frequency_penalty: float = option(
        _DEFAULT.frequency_penalty, "subtract per earlier occurrence of a token"
    )
    presence_penalty: float = option(
        _DEFAULT.presence_penalty, "subtract once for a token that occurred"
    )
    rep_window: int = option(
        _DEFAULT.rep_window, "last generated tokens that penalties look at; -1 means all"
    )
    penalize_prompt: bool = option(
        _DEFAULT.penalize_prompt, "penalties look at the prompt's tokens, too"
    )
    logit_bias: tuple[str, ...] = option(
        (), "ID=VALUE: add VALUE to the logit of token ID; may be repeated"
    )
    stop: tuple[str, ...] = option((), "end the answer before this text; may be repeated")
    stop_token_ids: tuple[int, ...] = option((), "end the answer at this token; may be repeated")
    ignore_eos: bool = option(_DEFAULT.ignore_eos, "go on past the model's own end of the answer")
    logprobs: int | None = option(
        None, "report log-probabilities of the k best tokens (with --json)"
    )
    filtered_logprobs: bool = option(
        _DEFAULT.filtered_logprobs, "report those that the draw used instead of the model's own"
    )

    def params(self) -> SamplingParams:
        """The request's parameters; a value out of range is a wrong option (ConfigError)."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["max_tokens"] = self.max_tokens or None
        values["logit_bias"] = dict(_biases(self.logit_bias))
        try:
            return SamplingParams(**values)
        except RequestError as error:
            raise ConfigError(str(error)) from error


def _biases(texts: Iterable[str]) -> Iterable[tuple[int, float]]:
    for text in texts:
        token, _, value = text.partition("=")
        try:
            bias = float(value)
        except ValueError:
            bias = math.nan
        if not token.strip().isdecimal() or math.isnan(bias):
            raise ConfigError(
                f"--logit-bias {text} is not ID=VALUE, a token's number and what to add, as in 13=-5"
            )
        yield int(token), bias
