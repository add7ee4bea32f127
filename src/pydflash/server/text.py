"""/tokenize, /detokenize and /apply-template: the language room by itself."""

from typing import Any

from fastapi import APIRouter, Request

from pydflash.server.fields import Body, ThinkingFields
from pydflash.server.json import Json
from pydflash.server.turns import Message, turns_of
from pydflash.service.chat import Chat, ChatRequest
from pydflash.text.toolset import Toolset

router = APIRouter()


class TokenizeBody(Body):
    content: str
    add_special: bool = False
    parse_special: bool = True


class DetokenizeBody(Body):
    tokens: list[int]


class TemplateBody(ThinkingFields):
    messages: list[Message]
    tools: list[Any] | None = None


@router.post("/tokenize")
async def tokenize(body: TokenizeBody, request: Request) -> Json:
    """Token ids of a text."""
    service: Chat = request.app.state.service
    tokens = await service.tokenize(
        body.content, add_special=body.add_special, parse_special=body.parse_special
    )
    return Json({"tokens": tokens, "count": len(tokens)})


@router.post("/detokenize")
async def detokenize(body: DetokenizeBody, request: Request) -> Json:
    """The text of token ids."""
    service: Chat = request.app.state.service
    return Json({"content": await service.detokenize(body.tokens)})


@router.post("/apply-template")
async def apply_template(body: TemplateBody, request: Request) -> Json:
    """The prompt that a conversation becomes; nothing is generated."""
    service: Chat = request.app.state.service
    asked = ChatRequest(
        turns=turns_of(body.messages),
        tools=Toolset.parse(body.tools),
        thinking=body.thinking(),
        template=body.template(),
    )
    return Json({"prompt": await service.render(asked)})
