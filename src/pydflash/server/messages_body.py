"""A request of Anthropic's Messages API to a ChatRequest: what clients send, and what it means here.

Fields that this server has no use for are tolerated, as the vendor tolerates new ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from pydflash.errors import RequestError
from pydflash.sampling.params import SamplingParams
from pydflash.server.fields import Body, SamplingFields, stops, template_switches, thinking
from pydflash.server.formats import json_format
from pydflash.service.chat import ChatRequest, ModelFacts, ToolChoice
from pydflash.service.constraint import Constraint
from pydflash.text.history import Content, PastCall, Turn
from pydflash.text.thinking import ThinkingRequest
from pydflash.text.toolset import Toolset

Block = dict[str, Any]


class MessageParam(Body):
    """`system` is allowed in between, as agents put reminders there."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingParam(Body):
    """All types but `disabled` ask for thinking."""

    type: str
    budget_tokens: int | None = None
    reply_budget: int | None = None
    display: str | None = None


class Metadata(Body):
    user_id: str | None = None


class OutputConfig(Body):
    effort: str | None = None
    format: dict[str, Any] | None = None


class CountBody(Body):
    """What decides the prompt, and so its length."""

    model: str | None = None
    messages: list[MessageParam] = Field(min_length=1)
    system: str | list[Block] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, SamplingFields):
    """`POST /v1/messages`. Without `max_tokens` the server's own limit holds."""

    stream: bool | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    output_format: dict[str, Any] | None = None
    session_id: str | None = None


def turns_of(body: CountBody) -> tuple[Turn, ...]:
    """The conversation. Raises RequestError with the path of a block that cannot be read."""
    turns: list[Turn] = []
    if body.system is not None:
        turns.append(Turn(role="system", content=_system(body.system)))
    for at, message in enumerate(body.messages):
        path = f"messages[{at}].content"
        blocks = _blocks(message.content)
        if message.role == "assistant":
            turns.append(_assistant(blocks, path))
        elif message.role == "user":
            turns.extend(_user(blocks, path))
        elif any(turn.role != "system" for turn in turns):
            # It stays in its place: moved to the front, it would change all that has been read.
            text = _joined(blocks, path, "")
            turns.append(
                Turn(role="user", content=f"<system-reminder>\n{text}\n</system-reminder>")
            )
        else:
            turns.append(Turn(role="system", content=_joined(blocks, path, "")))
    return tuple(turns)


def prompt_of(body: CountBody) -> ChatRequest:
    """The part of a request that makes its prompt."""
    tools = Toolset.parse(body.tools)
    return ChatRequest(
        turns=turns_of(body),
        tools=tools,
        tool_choice=_choice(body.tool_choice, tools),
        thinking=_thinking(body),
        constraint=_constraint(body),
        template=template_switches(body.chat_template_kwargs),
        face="anthropic",
    )


def params_of(body: MessagesBody, facts: ModelFacts) -> SamplingParams:
    """How tokens are drawn; what the request leaves open is as the model card recommends."""
    params = body.sampling(facts, logprobs=None, choice=0)
    return params if not body.stop_sequences else replace(params, stop=stops(body.stop_sequences))


def _system(system: str | list[Block]) -> Content:
    if isinstance(system, str):
        return system
    return [
        {"type": "text", "text": _text(block, "text", f"system[{at}]")}
        for at, block in enumerate(system)
    ]


def _blocks(content: str | list[Block]) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _assistant(blocks: Sequence[Block], path: str) -> Turn:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[PastCall] = []
    for at, block in enumerate(blocks):
        here = f"{path}[{at}]"
        match block.get("type"):
            case "thinking":
                thoughts.append(_text(block, "thinking", here))
            case "redacted_thinking":
                pass  # nobody here can read it
            case "tool_use":
                calls.append(_call(block, here))
            case _:
                texts.append(_shown(block, here))
    return Turn(
        role="assistant",
        content="".join(texts),
        reasoning="\n\n".join(text for text in thoughts if text),
        calls=tuple(calls),
    )


def _call(block: Block, path: str) -> PastCall:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise RequestError(f"{path}.input must be an object", param=f"{path}.input")
    return PastCall(
        id=_text(block, "id", path), name=_text(block, "name", path), arguments=arguments
    )


def _user(blocks: Sequence[Block], path: str) -> list[Turn]:
    """Results and what the user says, in their order."""
    turns: list[Turn] = []
    parts: list[Block] = []
    for at, block in enumerate(blocks):
        here = f"{path}[{at}]"
        if block.get("type") == "tool_result":
            turns.extend(_said(parts))
            parts = []
            turns.append(_result(block, here))
        else:
            parts.append({"type": "text", "text": _shown(block, here)})
    return turns + _said(parts)


def _said(parts: list[Block]) -> list[Turn]:
    if not parts:
        return []
    return [Turn(role="user", content=parts[0]["text"] if len(parts) == 1 else parts)]


def _result(block: Block, path: str) -> Turn:
    content = block.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str):
        if not isinstance(content, list):
            raise RequestError(
                f"{path}.content must be a string or a list of blocks", param=f"{path}.content"
            )
        content = _joined(content, f"{path}.content", "\n")
    return Turn(role="tool", content=content, call_id=_text(block, "tool_use_id", path))


def _joined(blocks: Sequence[Any], path: str, between: str) -> str:
    return between.join(_shown(block, f"{path}[{at}]") for at, block in enumerate(blocks))


def _shown(block: Any, path: str) -> str:
    """The text of a block that stands for text."""
    if not isinstance(block, dict):
        raise RequestError(f"{path} must be an object", param=path)
    match block.get("type"):
        case "text":
            return _text(block, "text", path)
        case "document" if _source(block).get("type") == "text":
            return _text(_source(block), "data", f"{path}.source")
        case "image" | "document" as kind:
            raise RequestError(
                f"{path} is {_ARTICLES[kind]}; this model reads text only", param=path
            )
        case kind:
            raise RequestError(
                f"{path}.type: {kind!r} is not a type of block that can stand here",
                param=f"{path}.type",
            )


_ARTICLES = {"image": "an image", "document": "a document that is no plain text"}


def _source(block: Block) -> Block:
    source = block.get("source")
    return source if isinstance(source, dict) else {}


def _text(block: Block, key: str, path: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{path}.{key} must be a string", param=f"{path}.{key}")
    return value


def _choice(choice: Choice | None, tools: Toolset) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        if choice.name is None or choice.name not in tools:
            raise RequestError(
                f"tool_choice.name: {choice.name!r} is not one of the tools",
                param="tool_choice.name",
            )
        return ToolChoice(mode="named", name=choice.name, parallel=parallel)
    if choice.type == "any":
        if not len(tools):
            raise RequestError(
                "tool_choice asks for a tool and there are none", param="tool_choice"
            )
        return ToolChoice(mode="required", parallel=parallel)
    return ToolChoice(mode=choice.type, parallel=parallel)


def _thinking(body: CountBody) -> ThinkingRequest:
    """`output_config.effort` says how much, but only `thinking` whether at all."""
    request, asked = thinking(None, None, body.chat_template_kwargs), body.thinking
    if asked is None or asked.type == "disabled":
        return replace(request, asked=None if asked is None else False)
    effort = body.output_config.effort if body.output_config else None
    return replace(
        request,
        asked=True,
        effort=effort,
        budget_tokens=asked.budget_tokens,
        reply_budget=asked.reply_budget,
    )


def _constraint(body: CountBody) -> Constraint | None:
    """By `output_config.format`, or the older `output_format`."""
    wanted = body.output_config.format if body.output_config else None
    if wanted is None and isinstance(body, MessagesBody):
        return json_format(body.output_format, "output_format")
    return json_format(wanted, "output_config.format")
