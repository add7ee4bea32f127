"""/v1/chat/completions: OpenAI's chat, streamed or folded."""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from pydflash.errors import RequestError
from pydflash.server import openai
from pydflash.server.fields import SamplingFields, StreamOptions, ThinkingFields
from pydflash.server.formats import constraint
from pydflash.server.json import Json
from pydflash.server.many import begin_all, fold_all, many
from pydflash.server.turns import Message, turns_of
from pydflash.server.wire import LEFT, Events, EventStream, Frames, frame, unless_left
from pydflash.service.chat import (
    CallStart,
    Chat,
    ChatFinished,
    ChatReply,
    ChatRequest,
    TokenLogprobs,
    ToolChoice,
)
from pydflash.text.stream import Content, Reasoning, ToolCallArguments
from pydflash.text.toolset import Toolset

router = APIRouter()


class ChatBody(SamplingFields, ThinkingFields):
    """The request's body."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    grammar: str | None = None
    regex: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    n: int | None = Field(None, ge=1, le=64)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    session_id: str | None = None
    extra_body: dict[str, Any] | None = None

    def requests(self, service: Chat) -> list[ChatRequest]:
        """One for each choice. Raises RequestError."""
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs `logprobs: true`", param="top_logprobs")
        count = (self.top_logprobs or 0) if self.logprobs else None
        tools = Toolset.parse(self.tools)
        turns = turns_of(self.messages)
        seed = secrets.randbits(63) if self.seed is None else self.seed
        body = self.model_copy(update={"seed": seed})
        return [
            ChatRequest(
                turns=turns,
                tools=tools,
                tool_choice=tool_choice(self.tool_choice, tools, self.parallel_tool_calls),
                params=body.sampling(service.facts, logprobs=count, choice=choice),
                thinking=self.thinking(),
                constraint=constraint(self.response_format, self.grammar, self.regex),
                template=self.template(),
                **self.serving,
                session=self.session_id or _text((self.extra_body or {}).get("session_id")),
                user=self.user,
                face="chat",
                streamed=bool(self.stream),
            )
            for choice in range(self.n or 1)
        ]


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer a conversation."""
    service: Chat = request.app.state.service
    requests = body.requests(service)
    head = {
        "id": "chatcmpl-" + secrets.token_hex(12),
        "created": int(time.time()),
        "model": service.facts.name,
    }
    streams = await begin_all(service, requests)
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        frames = _frames(streams, head, with_logprobs=bool(body.logprobs), usage=with_usage)
        return EventStream(frames, streams, openai.error_frames)
    replies = await unless_left(request, fold_all(streams))
    if replies is None:
        return Response(status_code=LEFT)
    choices = [_choice(i, reply, logprobs=bool(body.logprobs)) for i, reply in enumerate(replies)]
    usage = openai.usage([reply.finished for reply in replies])
    return Json({**head, "object": "chat.completion", "choices": choices, "usage": usage})


def _choice(index: int, reply: ChatReply, *, logprobs: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if not reply.calls:
        message["content"] = reply.content
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "finish_reason": openai.finish_reason(reply.finished),
        **openai.details(reply.finished),
    }
    if logprobs:
        choice["logprobs"] = openai.logprobs(reply.logprobs)
    return choice


async def _frames(
    streams: Sequence[Events], head: Mapping[str, Any], *, with_logprobs: bool, usage: bool
) -> Frames:
    """The chunks of all choices as they come, interleaved."""

    def chunk(choices: list[dict[str, Any]], **more: Any) -> str:
        shape = {**head, "object": "chat.completion.chunk", "choices": choices}
        return frame(shape | ({"usage": None} if usage else {}) | more)

    def delta(index: int, delta: dict[str, Any], **more: Any) -> str:
        return chunk([{"index": index, "delta": delta, "finish_reason": None, **more}])

    finished: list[ChatFinished] = []
    pending: dict[int, TokenLogprobs] = {}
    async with aclosing(many(streams)) as events:
        for index in range(len(streams)):
            yield delta(index, {"role": "assistant", "content": ""})
        async for index, event in events:
            more: dict[str, Any] = {}
            if isinstance(event, Content | Reasoning) and with_logprobs:
                told = pending.pop(index, None)
                more["logprobs"] = openai.logprobs({told.channel: told.tokens} if told else {})
            match event:
                case TokenLogprobs():
                    pending[index] = event
                case Content(text):
                    yield delta(index, {"content": text}, **more)
                case Reasoning(text):
                    yield delta(index, {"reasoning_content": text}, **more)
                case CallStart(at, id, name):
                    function = {"name": name, "arguments": ""}
                    call = {"index": at, "id": id, "type": "function", "function": function}
                    yield delta(index, {"tool_calls": [call]})
                case ToolCallArguments(at, json_delta):
                    call = {"index": at, "function": {"arguments": json_delta}}
                    yield delta(index, {"tool_calls": [call]})
                case ChatFinished():
                    finished.append(event)
                    last = {
                        "index": index,
                        "delta": {},
                        "finish_reason": openai.finish_reason(event),
                        **openai.details(event),
                    }
                    yield chunk([last], timings=openai.timings(event))
    if usage:
        yield chunk([], usage=openai.usage(finished))
    yield frame("[DONE]")


def tool_choice(
    given: str | Mapping[str, Any] | None, tools: Toolset, parallel: bool | None
) -> ToolChoice:
    """OpenAI's `tool_choice`, with the function's name nested (chat) or not (Responses)."""
    many_calls = parallel is not False
    match given:
        case None | "auto":
            return ToolChoice(parallel=many_calls)
        case "none":
            return ToolChoice(mode="none", parallel=many_calls)
        case "required":
            if not len(tools):
                raise RequestError("tool_choice is required and there is no tool", param="tools")
            return ToolChoice(mode="required", parallel=many_calls)
        case {"type": "function", "function": {"name": str(name)}}:
            pass
        case {"type": "function", "name": str(name)}:
            pass
        case _:
            raise RequestError(
                "tool_choice must be auto, none, required or {type: function, function: {name}}",
                param="tool_choice",
            )
    if name not in tools:
        raise RequestError(
            f"tool_choice names {name}, which is not among the tools", param="tool_choice"
        )
    return ToolChoice(mode="named", name=name, parallel=many_calls)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
