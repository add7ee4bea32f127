"""A request of OpenAI's Responses API to a ChatRequest: what clients send, and what it means here.

Nothing is stored here: what points at an earlier response is refused by name. Fields that this server
has no use for are tolerated, as the vendor tolerates new ones.
"""

from typing import Any

from pydantic import Field

from pydflash.errors import RequestError
from pydflash.sampling.params import SamplingParams
from pydflash.server.fields import Body, SamplingFields, template_switches, thinking
from pydflash.server.formats import json_format
from pydflash.server.responses_history import History
from pydflash.server.responses_stream import Style
from pydflash.server.responses_tools import Declared, choice_of, declared
from pydflash.service.chat import ChatRequest, ModelFacts
from pydflash.text.history import Turn

_LOGPROBS = "message.output_text.logprobs"


class ReasoningParam(Body):
    effort: str | None = None
    summary: str | None = None


class TextParam(Body):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class CountBody(Body):
    """What decides the prompt, and so its length."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningParam | None = None
    text: TextParam | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesBody(CountBody, SamplingFields):
    """`POST /v1/responses`. `store` is accepted and nothing stored, which the response says."""

    stream: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    truncation: str | None = None
    user: str | None = None
    session_id: str | None = None


def prompt_of(body: CountBody) -> tuple[ChatRequest, Declared]:
    """The part of a request that makes its prompt, and what its tools are called by the client."""
    _refuse_stored(body)
    history = History()
    if body.instructions:
        history.add_turn(Turn(role="system", content=body.instructions))
    if isinstance(body.input, str):
        history.add_turn(Turn(role="user", content=body.input))
    elif body.input:
        for at, item in enumerate(body.input):
            history.add(item, f"input[{at}]")
    if not history.turns:
        raise RequestError("input is missing: a string or a list of items", param="input")
    tools = declared([*(body.tools or ()), *history.tools])
    tool_choice, tools = choice_of(body.tool_choice, tools, parallel=body.parallel_tool_calls)
    reasoning = None if body.reasoning is None else body.reasoning.model_dump()
    request = ChatRequest(
        turns=history.turns,
        tools=tools.toolset,
        tool_choice=tool_choice,
        thinking=thinking(None, reasoning, body.chat_template_kwargs),
        constraint=json_format(body.text.format if body.text else None, "text.format"),
        template=template_switches(body.chat_template_kwargs),
        face="responses",
    )
    return request, tools


def params_of(body: ResponsesBody, facts: ModelFacts) -> SamplingParams:
    """How tokens are drawn; what the request leaves open is as the model card recommends."""
    logprobs = body.top_logprobs
    if logprobs is None and _LOGPROBS in (body.include or ()):
        logprobs = 0
    return body.sampling(facts, logprobs=logprobs, choice=0)


def style_of(body: ResponsesBody, tools: Declared) -> Style:
    """How the client wants the answer told."""
    summary = body.reasoning is not None and body.reasoning.summary is not None
    return Style(summary=summary, custom=tools.custom, namespaces=tools.namespaces)


def echo_of(body: ResponsesBody, params: SamplingParams, model: str) -> dict[str, Any]:
    """The fields of a response that repeat its request, as it was understood."""
    reasoning, text = body.reasoning, body.text
    return {
        "model": model,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": (text.format if text else None) or {"type": "text"}},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _refuse_stored(body: CountBody) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name, None) is not None:
            raise RequestError(
                f"{name} is not supported: this server stores nothing; send the whole "
                "conversation as input",
                code="unsupported_parameter",
                param=name,
            )
    if getattr(body, "background", None):
        raise RequestError(
            "background is not supported: this server stores nothing; use stream",
            code="unsupported_parameter",
            param="background",
        )
