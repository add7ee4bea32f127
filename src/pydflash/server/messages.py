"""Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pydflash.errors import PydflashError, RequestError
from pydflash.server import errors
from pydflash.server.json import Json
from pydflash.server.messages_body import CountBody, MessagesBody, params_of, prompt_of
from pydflash.server.messages_stream import MessageStream
from pydflash.server.wire import (
    LEFT,
    EventStream,
    begin,
    frame,
    frames_of,
    take_whole,
    unless_left,
)
from pydflash.service.chat import Chat, ChatRequest, ModelFacts

router = APIRouter(tags=["anthropic"])

_SESSION = "x-claude-code-session-id"


@router.post("/v1/messages")
async def create(request: Request, body: MessagesBody) -> Response:
    """An answer, whole or streamed."""
    service: Chat = request.app.state.service
    asked = request_of(body, service.facts, session=request.headers.get(_SESSION))
    shown = body.thinking is None or body.thinking.display != "omitted"
    # Claude Code sends back no thought of another model than the one it asked for.
    stream = MessageStream(body.model or service.facts.name, show_thinking=shown)
    if body.stream:
        started, events = await begin(service, asked)
        return EventStream(frames_of(stream, started, events), [events], _failed)

    async def whole() -> dict[str, Any]:
        await take_whole(service, asked, stream)
        return stream.message

    message = await unless_left(request, whole())
    return Response(status_code=LEFT) if message is None else Json(message)


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request, body: CountBody) -> Response:
    """How long the prompt would be; nothing is generated."""
    service: Chat = request.app.state.service
    return Json({"input_tokens": await service.count_tokens(prompt_of(body))})


def request_of(body: MessagesBody, facts: ModelFacts, *, session: str | None = None) -> ChatRequest:
    """What the client asks for. Raises RequestError with the path of what is wrong."""
    if body.messages[-1].role == "assistant":
        raise RequestError(
            "messages must end with a user message: an answer cannot be continued in the middle",
            param="messages",
        )
    return replace(
        prompt_of(body),
        params=params_of(body, facts),
        **body.serving,
        session=body.session_id or session,
        user=body.metadata.user_id if body.metadata else None,
        streamed=bool(body.stream),
    )


def _failed(error: PydflashError) -> Iterator[str]:
    yield frame(errors.body_of("anthropic", error), "error")
