"""The sampling flags that `run` and `chat` share, and the SamplingParams they mean."""

from dataclasses import dataclass

from pydflash.config import option
from pydflash.errors import ConfigError, RequestError
from pydflash.sampling.params import SamplingParams

_DEFAULT = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags:
    """What the command line calls SamplingParams' fields."""

    max_tokens: int = option(512, "tokens to generate at most; 0 means up to the context")
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
    stop: tuple[str, ...] = option((), "end the answer before this text; may be repeated")
    logprobs: int | None = option(
        None, "report log-probabilities of the k best tokens (with --json)"
    )

    def params(self) -> SamplingParams:
        """The request's parameters; a value out of range is a wrong option (ConfigError)."""
        try:
            return SamplingParams(
                max_tokens=self.max_tokens or None,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=self.seed,
                repetition_penalty=self.repetition_penalty,
                frequency_penalty=self.frequency_penalty,
                presence_penalty=self.presence_penalty,
                stop=self.stop,
                logprobs=self.logprobs,
            )
        except RequestError as error:
            raise ConfigError(str(error)) from error
