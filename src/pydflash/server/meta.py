"""What the server says of itself: models, health, properties, status, and what it does not serve."""

import importlib.metadata
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pydflash.errors import RequestError
from pydflash.server.json import Json
from pydflash.server.wire import EventStream, Frames, frame
from pydflash.service.chat import Chat, ModelFacts
from pydflash.text.cards import EFFORTS

router = APIRouter()

PROPS_SCHEMA = 2
_UNSERVED = (
    "/v1/embeddings",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/moderations",
    "/v1/rerank",
)


@router.get("/v1/models")
async def models(request: Request) -> Json:
    """The one model, for OpenAI's and Anthropic's clients; Codex says its `client_version`."""
    facts = _service(request).facts
    if "client_version" in request.query_params:
        return Json({"models": [_codex(facts)]})
    page = {"first_id": facts.name, "last_id": facts.name, "has_more": False}
    return Json({"object": "list", "data": [_model(facts)], **page})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Json:
    """The model by its name."""
    facts = _service(request).facts
    if name != facts.name:
        raise RequestError(
            f"there is no model {name}; this server has {facts.name}",
            code="model_not_found",
            param="model",
            status=404,
        )
    return Json(_model(facts))


@router.get("/health")
async def health(request: Request) -> Json:
    """200 while answers can be given; 503 when the engine has stopped."""
    failure = _service(request).board.failure
    if failure is not None:
        return Json({"status": "error", "message": failure}, status_code=503)
    return Json({"status": "ok"})


@router.get("/props")
async def props(request: Request) -> Json:
    """What was chosen at start."""
    service = _service(request)
    facts, card = service.facts, service.facts.card
    version = importlib.metadata.version("pydflash")
    sampling = card.sampling
    return Json(
        {
            "server": {"name": "pydflash", "version": version, "props_schema": PROPS_SCHEMA},
            "build_info": f"pydflash v{version} props_schema={PROPS_SCHEMA}",
            "api": sorted(_paths(request)),
            "model": {"arch": facts.arch, "draft": facts.drafter, "tokenizer_id": facts.name},
            "model_alias": facts.name,
            "model_path": facts.path,
            "model_card": card.source,
            "chat_template": facts.template_source,
            "total_slots": facts.max_concurrency,
            "default_generation_settings": {
                "n_ctx": facts.max_ctx,
                "temperature": sampling.get("temperature", 0.0),
                "top_p": sampling.get("top_p", 1.0),
                "top_k": sampling.get("top_k", 0),
                "min_p": sampling.get("min_p", 0.0),
                "repeat_penalty": sampling.get("repetition_penalty", 1.0),
            },
            "budget_envelope": {
                "default_max_tokens": facts.max_tokens,
                "think_max_tokens": card.think_max,
                "hard_limit_reply_budget": card.reply_budget,
                "reasoning_effort_tiers": dict(card.tiers),
            },
            "reasoning": {"default": "off", "supported": True, "supported_efforts": list(EFFORTS)},
            "runtime": {
                "backend": facts.device.partition(":")[0],
                "ops": facts.ops,
                "kv_cache_k": facts.cache_types[0],
                "kv_cache_v": facts.cache_types[1],
            },
            "speculative": {"enabled": facts.drafter is not None, "drafter": facts.drafter},
            "speculative_mode": facts.drafting,
            "daemon": {"alive": service.board.failure is None},
            "plan": list(facts.plan),
        }
    )


@router.get("/status/json")
async def status(request: Request) -> Json:
    """What is going on, and the figures of the last answers."""
    return Json(_service(request).board.record())


@router.get("/status/events")
async def status_events(request: Request) -> Response:
    """The same as events: `status` at each change, `token` for each piece of text."""
    return EventStream(_notices(_service(request)))


async def _unserved(request: Request) -> Json:
    raise RequestError(
        f"{request.url.path} is not served: pydflash generates text only",
        code="unsupported_endpoint",
        status=404,
    )


for _path in _UNSERVED:
    router.add_api_route(_path, _unserved, methods=["GET", "POST"], include_in_schema=False)


async def _notices(service: Chat) -> Frames:
    async with aclosing(service.board.watch()) as notices:
        async for notice in notices:
            yield frame(notice.data, notice.event)


def _service(request: Request) -> Chat:
    service: Chat = request.app.state.service
    return service


def _paths(request: Request) -> set[str]:
    return set(request.app.openapi()["paths"])


def _model(facts: ModelFacts) -> dict[str, Any]:
    return {
        "id": facts.name,
        "object": "model",
        "type": "model",
        "display_name": facts.name,
        "owned_by": "pydflash",
        "created": facts.created,
        "created_at": datetime.fromtimestamp(facts.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": facts.max_ctx,
        "max_tokens": facts.max_tokens,
        "context_length": facts.max_ctx,
        "max_context_length": facts.max_ctx,
        "max_model_len": facts.max_ctx,
    }


def _codex(facts: ModelFacts) -> dict[str, Any]:
    return {
        "slug": facts.name,
        "display_name": facts.name,
        "description": "Local pydflash server with speculative decoding",
        "default_reasoning_level": "low",
        "supported_reasoning_levels": [
            {"effort": effort, "description": f"thinks for up to {tokens} tokens"}
            for effort, tokens in facts.card.tiers.items()
        ],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 1,
        "context_window": facts.max_ctx,
        "supports_reasoning_summaries": False,
        "supports_parallel_tool_calls": False,
    }
