"""OpenAI's Responses API: /v1/responses and /v1/responses/input_tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pydflash.errors import PydflashError, RequestError
from pydflash.server.json import Json
from pydflash.server.responses_body import (
    CountBody,
    ResponsesBody,
    echo_of,
    params_of,
    prompt_of,
    style_of,
)
from pydflash.server.responses_stream import ResponseStream
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

router = APIRouter(tags=["openai"])

_SESSION = "session-id"


@router.post("/v1/responses")
async def create(request: Request, body: ResponsesBody) -> Response:
    """An answer, whole or streamed."""
    service: Chat = request.app.state.service
    asked, stream = request_of(body, service.facts, request.headers)
    if body.stream:
        started, events = await begin(service, asked)

        def failed(error: PydflashError) -> Iterator[str]:
            for wire in stream.fail(str(error)):
                yield frame(wire, wire["type"])

        return EventStream(frames_of(stream, started, events), [events], failed)

    async def whole() -> dict[str, Any]:
        await take_whole(service, asked, stream)
        return stream.response

    response = await unless_left(request, whole())
    return Response(status_code=LEFT) if response is None else Json(response)


@router.post("/v1/responses/input_tokens")
async def input_tokens(request: Request, body: CountBody) -> Response:
    """How long the prompt would be; nothing is generated."""
    service: Chat = request.app.state.service
    asked, _ = prompt_of(body)
    count = await service.count_tokens(asked)
    return Json({"object": "response.input_tokens", "input_tokens": count})


@router.get("/v1/responses/{response_id}")
@router.delete("/v1/responses/{response_id}")
@router.post("/v1/responses/{response_id}/cancel")
@router.get("/v1/responses/{response_id}/input_items")
async def stored(response_id: str) -> Response:
    """Always a 404."""
    raise RequestError(
        f"there is no response {response_id!r}: this server stores none",
        code="not_found",
        param="response_id",
        status=404,
    )


def request_of(
    body: ResponsesBody, facts: ModelFacts, headers: Mapping[str, str]
) -> tuple[ChatRequest, ResponseStream]:
    """What the client asks for, and what will tell it. Raises RequestError with a path."""
    asked, tools = prompt_of(body)
    params = params_of(body, facts)
    asked = replace(
        asked,
        params=params,
        **body.serving,
        session=body.session_id or body.prompt_cache_key or headers.get(_SESSION),
        user=body.user,
        streamed=bool(body.stream),
    )
    return asked, ResponseStream(echo_of(body, params, facts.name), style_of(body, tools))
