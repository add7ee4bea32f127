"""/v1/completions: text continued as it stands, without a template, streamed or folded."""

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
from pydflash.server.fields import SamplingFields, StreamOptions
from pydflash.server.formats import constraint
from pydflash.server.json import Json
from pydflash.server.many import begin_all, fold_all, many
from pydflash.server.wire import LEFT, Events, EventStream, Frames, frame, unless_left
from pydflash.service.chat import Chat, ChatFinished, ChatRequest, TokenInfo, TokenLogprobs
from pydflash.text.stream import Content

router = APIRouter()

_MOST_CHOICES = 128  # of one request, as OpenAI's `n`

Prompt = str | list[int] | list[str] | list[list[int]]


class CompletionBody(SamplingFields):
    """The request's body."""

    model: str | None = None
    prompt: Prompt
    n: int | None = Field(None, ge=1, le=64)
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    response_format: dict[str, Any] | None = None
    grammar: str | None = None
    regex: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    session_id: str | None = None

    def prompts(self) -> list[str | tuple[int, ...]]:
        """The prompts, each a text or token ids. Raises RequestError when there is none."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise RequestError("prompt is empty", param="prompt")
        if isinstance(given[0], int):
            return [tuple(t for t in given if isinstance(t, int))]
        return [p if isinstance(p, str) else tuple(p) for p in given if not isinstance(p, int)]

    def requests(self, service: Chat) -> list[ChatRequest]:
        """One for each prompt and choice. Raises RequestError."""
        for name, refused in (
            ("suffix", bool(self.suffix)),
            ("echo", bool(self.echo)),
            ("best_of", self.best_of not in (None, self.n or 1)),
        ):
            if refused:
                raise RequestError(f"this server has no `{name}`: leave it out", param=name)
        prompts = self.prompts()
        if len(prompts) * (self.n or 1) > _MOST_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with {self.n or 1} choices each are more than the "
                f"{_MOST_CHOICES} that one request may ask for",
                param="prompt" if len(prompts) > _MOST_CHOICES else "n",
            )
        seed = secrets.randbits(63) if self.seed is None else self.seed
        body = self.model_copy(update={"seed": seed})
        return [
            ChatRequest(
                prompt=prompt,
                params=body.sampling(service.facts, logprobs=self.logprobs, choice=choice),
                constraint=constraint(self.response_format, self.grammar, self.regex),
                **self.serving,
                session=self.session_id,
                user=self.user,
                face="completions",
                streamed=bool(self.stream),
            )
            for prompt in prompts
            for choice in range(self.n or 1)
        ]


@router.post("/v1/completions")
async def completions(body: CompletionBody, request: Request) -> Response:
    """Continue a text."""
    service: Chat = request.app.state.service
    requests = body.requests(service)
    head = {
        "id": "cmpl-" + secrets.token_hex(12),
        "object": "text_completion",
        "created": int(time.time()),
        "model": service.facts.name,
    }
    streams = await begin_all(service, requests)
    with_logprobs = body.logprobs is not None
    per_prompt = body.n or 1
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        frames = _frames(
            streams, head, with_logprobs=with_logprobs, usage=with_usage, per_prompt=per_prompt
        )
        return EventStream(frames, streams, openai.error_frames)
    replies = await unless_left(request, fold_all(streams))
    if replies is None:
        return Response(status_code=LEFT)
    choices = [
        {
            "index": index,
            "text": reply.content,
            "finish_reason": openai.finish_reason(reply.finished),
            "logprobs": _logprobs(reply.logprobs.get("content", ()), 0) if with_logprobs else None,
            **openai.details(reply.finished),
        }
        for index, reply in enumerate(replies)
    ]
    usage = openai.usage([reply.finished for reply in replies], per_prompt=per_prompt)
    return Json({**head, "choices": choices, "usage": usage})


async def _frames(
    streams: Sequence[Events],
    head: Mapping[str, Any],
    *,
    with_logprobs: bool,
    usage: bool,
    per_prompt: int,
) -> Frames:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> str:
        return frame({**head, "choices": choices} | ({"usage": None} if usage else {}) | more)

    finished: dict[int, ChatFinished] = {}
    pending: dict[int, TokenLogprobs] = {}
    offsets = [0] * len(streams)
    async with aclosing(many(streams)) as events:
        async for index, event in events:
            match event:
                case TokenLogprobs():
                    pending[index] = event
                case Content(text):
                    told = pending.pop(index, None)
                    tokens = told.tokens if told else ()
                    logprobs = _logprobs(tokens, offsets[index]) if with_logprobs else None
                    offsets[index] += len(text)
                    choice = {"index": index, "text": text, "finish_reason": None}
                    yield chunk([choice | {"logprobs": logprobs}])
                case ChatFinished():
                    finished[index] = event
                    last = {
                        "index": index,
                        "text": "",
                        "logprobs": None,
                        "finish_reason": openai.finish_reason(event),
                        **openai.details(event),
                    }
                    yield chunk([last], timings=openai.timings(event))
    if usage:
        ordered = [finished[index] for index in sorted(finished)]
        yield chunk([], usage=openai.usage(ordered, per_prompt=per_prompt))
    yield frame("[DONE]")


def _logprobs(tokens: Sequence[TokenInfo], offset: int) -> dict[str, Any]:
    """The older form: four lists side by side. `offset`: characters of the text before."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{other.text: other.logprob for other in token.top} for token in tokens],
        "text_offset": offsets,
        "token_ids": [token.token for token in tokens],
    }
