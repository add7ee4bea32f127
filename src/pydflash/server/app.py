"""create_app: the routes over one chat service. Each route file is one line here."""

import logging

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pydflash.config import ServerConfig
from pydflash.errors import EngineError, PydflashError
from pydflash.server import (
    chat,
    completions,
    errors,
    messages,
    meta,
    metrics,
    pages,
    responses,
    text,
)
from pydflash.server.gate import Gate
from pydflash.server.json import Json
from pydflash.service.chat import Chat

log = logging.getLogger(__name__)

_ROUTES = (
    chat.router,
    completions.router,
    messages.router,
    responses.router,
    meta.router,
    metrics.router,
    pages.router,
    text.router,
)


def create_app(service: Chat, config: ServerConfig | None = None) -> FastAPI:
    """The application. Routes find the service as `request.app.state.service`."""
    config = config or ServerConfig()
    app = FastAPI(title="pydflash", docs_url=None, redoc_url=None)  # our own page asks nobody
    app.state.service = service
    app.state.config = config
    for router in _ROUTES:
        app.include_router(router)
    for kind in (PydflashError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _failed)
    app.add_middleware(
        Gate, cors=not config.no_cors, api_key=config.api_key, refused=service.board.error
    )
    return app


async def _failed(request: Request, error: Exception) -> Json:
    service: Chat = request.app.state.service
    if not isinstance(error, EngineError):  # which the service counts, for streams as well
        service.board.error(errors.code_of(error))
    return errors.reply(errors.vendor_of(request.url.path, request.headers), error)
