"""What the request bodies of several APIs share: strict types, and the sampling fields.

Types are strict, so that `"temperature": "0.7"` is an error with the field's path; fields that nobody
knows are let pass, as the vendors do.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pydflash.errors import RequestError
from pydflash.sampling.params import SamplingParams
from pydflash.service.chat import ModelFacts
from pydflash.text.thinking import ThinkingRequest

_MOST_SEED = 2**64
_MOST_BIAS = 10_000  # more decides nothing, and leaves float32

# -1 is as much as fits, and 0 reads the prompt and answers nothing.
Limit = Annotated[int, Field(ge=-1, le=2**31)]
_NO_LIMIT = 2**31
_SCOPES = r"^(off|full|auto|(auto:)?([1-9][0-9]{0,5}|1000000))$"


class Body(BaseModel):
    """Base of all wire models."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)


class PrefixCacheField(Body):
    """The seeds' `prefix_cache`. All scopes but `off` are one here: whatever is known is used."""

    scope: Annotated[str, Field(pattern=_SCOPES)] | Annotated[int, Field(ge=1, le=1_000_000)]


class SamplingFields(Body):
    """How tokens are drawn, by the names that OpenAI, vLLM and the seeds use."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = Field(
        None, validation_alias=AliasChoices("repetition_penalty", "rep_pen", "repeat_penalty")
    )
    rep_window: int | None = Field(
        None, validation_alias=AliasChoices("rep_window", "repeat_last_n")
    )
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: Limit | None = None
    max_output_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    prefix_cache: PrefixCacheField | None = None
    speculate: bool | None = None

    @property
    def limit(self) -> int | None:
        """Tokens of the answer: the first of the three names that is given."""
        given = (self.max_tokens, self.max_output_tokens, self.max_completion_tokens)
        return next((one for one in given if one is not None), None)

    @property
    def serving(self) -> dict[str, Any]:
        """How the request is served, by ChatRequest's names."""
        reuse = self.prefix_cache is None or self.prefix_cache.scope != "off"
        return {
            "is_silent": self.limit == 0,
            "reuse": reuse,
            "speculate": self.speculate is not False,
        }

    def sampling(self, facts: ModelFacts, *, logprobs: int | None, choice: int) -> SamplingParams:
        """What was asked, over what the model card recommends. Raises RequestError."""
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "rep_window": self.rep_window,
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
        }
        values = card_sampling(facts) | {k: v for k, v in given.items() if v is not None}
        return SamplingParams(
            **values,
            seed=None if self.seed is None else self.seed % _MOST_SEED,
            stop=stops(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logit_bias=biases(self.logit_bias),
            max_tokens=_most(self.limit),
            logprobs=logprobs,
            choice=choice,
        )


class ThinkingFields(Body):
    """How OpenAI's clients ask for reasoning, and the template's own switches."""

    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def thinking(self) -> ThinkingRequest:
        """Raises RequestError for an effort or a switch of a wrong type."""
        return thinking(self.reasoning_effort, self.reasoning, self.chat_template_kwargs)

    def template(self) -> dict[str, Any]:
        return template_switches(self.chat_template_kwargs)


def thinking(
    effort: str | None, reasoning: Mapping[str, Any] | None, switches: Mapping[str, Any] | None
) -> ThinkingRequest:
    """From `reasoning_effort`, a `reasoning` object and `chat_template_kwargs`."""
    inner = (reasoning or {}).get("effort")
    if inner is not None and not isinstance(inner, str):
        raise RequestError("reasoning.effort must be a string", param="reasoning.effort")
    switch = (switches or {}).get("enable_thinking")
    if switch is not None and not isinstance(switch, bool):
        path = "chat_template_kwargs.enable_thinking"
        raise RequestError(f"{path} must be true or false", param=path)
    return ThinkingRequest(
        effort=effort if effort is not None else inner,
        asked=True if reasoning is not None else None,
        switch=switch,
    )


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None


_TAKEN = ("self", "messages", "tools", "add_generation_prompt", "enable_thinking")


def template_switches(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The switches that reach the template: not those that are decided by us."""
    return {key: value for key, value in (given or {}).items() if key not in _TAKEN}


def card_sampling(facts: ModelFacts) -> dict[str, Any]:
    """What the model's makers recommend."""
    return {k: int(v) if k == "top_k" else v for k, v in facts.card.sampling.items()}


def _most(limit: int | None) -> int | None:
    """The limit as the engine knows it: for an answer that is not told it draws one token."""
    if limit is None:
        return None
    return _NO_LIMIT if limit < 0 else max(limit, 1)


def stops(given: str | list[str] | None) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given or ())
    if len(found) > 16:
        raise RequestError(f"stop has {len(found)} strings; 16 are the most", param="stop")
    return found


def biases(given: Mapping[str, float] | None) -> dict[int, float]:
    """Token ids are the keys, as text."""
    found = {}
    for key, value in (given or {}).items():
        if not key.isascii() or not key.isdigit():
            raise RequestError(
                f"logit_bias has the key {key!r}; keys are token ids", param="logit_bias"
            )
        if not abs(value) <= _MOST_BIAS:
            raise RequestError(
                f"logit_bias.{key} must be within -{_MOST_BIAS}..{_MOST_BIAS}",
                param=f"logit_bias.{key}",
            )
        found[int(key[:20])] = value
    return found
