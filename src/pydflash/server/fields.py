"""What the request bodies of several APIs share: strict types, and the sampling fields.

Types are strict, so that `"temperature": "0.7"` is an error with the field's path; fields that nobody
knows are let pass, as the vendors do.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from pydflash.errors import RequestError
from pydflash.sampling.params import SamplingParams
from pydflash.server.json import dumps
from pydflash.service.chat import ModelFacts
from pydflash.service.constraint import Constraint
from pydflash.text.thinking import ThinkingRequest

_MOST_SEED = 2**64
_MOST_BIAS = 10_000  # more decides nothing, and leaves float32

Positive = Annotated[int, Field(ge=1, le=2**31)]


class Body(BaseModel):
    """Base of all wire models."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)


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
    max_tokens: Positive | None = None
    max_output_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None

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
            max_tokens=self.max_tokens or self.max_output_tokens or self.max_completion_tokens,
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


def constraint(
    response_format: Mapping[str, Any] | None, grammar: str | None, regex: str | None
) -> Constraint | None:
    """What the answer must be. At most one may be given. Raises RequestError."""
    found = []
    if grammar is not None:
        found.append(Constraint(kind="grammar", text=_unicode(grammar, "grammar")))
    if regex is not None:
        found.append(Constraint(kind="regex", text=_unicode(regex, "regex")))
    kind = (response_format or {}).get("type", "text")
    if kind == "json_object":
        found.append(Constraint(kind="json_object", param="response_format"))
    elif kind == "json_schema":
        # OpenAI's chat nests the schema, its Responses do not.
        assert response_format is not None
        holder = response_format.get("json_schema", response_format)
        schema = holder.get("schema") if isinstance(holder, Mapping) else None
        if not isinstance(schema, Mapping):
            path = "response_format.json_schema.schema"
            raise RequestError(f"{path} must be a JSON schema, an object", param=path)
        found.append(Constraint(kind="json_schema", text=dumps(schema), param="response_format"))
    elif kind != "text":
        raise RequestError(
            f"response_format.type is {kind!r}; choose text, json_object or json_schema",
            param="response_format.type",
        )
    if len(found) > 1:
        raise RequestError(
            "response_format, grammar and regex exclude one another: give one",
            param="response_format",
        )
    return found[0] if found else None


def _unicode(text: str, param: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{param} has half a character: {error}", param=param) from error
    return text
