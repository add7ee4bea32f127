"""Gate: what every request passes first: CORS, the key, the body's limit. Plain ASGI, for streams."""

import logging
import secrets
import time
from collections.abc import Callable, Iterable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pydflash.server import errors

log = logging.getLogger(__name__)

MAX_BODY = 64 * 1024 * 1024
_CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
    (b"access-control-allow-headers", b"*, Authorization"),  # which * does not cover
)
# What a browser or a probe asks for before it can have a key.
_OPEN = ("/", "/docs", "/health", "/openapi.json", "/status", "/favicon.ico")
_OPEN_UNDER = "/static/"


class Gate:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        cors: bool = True,
        api_key: str = "",
        refused: Callable[[str], None] = lambda code: None,
    ) -> None:
        """`refused` is told the code of what does not pass."""
        self._app = app
        self._cors: Iterable[tuple[bytes, bytes]] = _CORS if cors else ()
        self._key = api_key.encode()
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        status, begun = 0, time.monotonic()

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._cors]
                status = message["status"]
            await send(message)

        try:
            await self._pass(scope, receive, reply)
        finally:
            _note(scope, status, time.monotonic() - begun)

    async def _pass(self, scope: Scope, receive: Receive, reply: Send) -> None:
        if scope["method"] == "OPTIONS":
            await reply({"type": "http.response.start", "status": 204, "headers": []})
            await reply({"type": "http.response.body", "body": b""})
            return
        headers, path = Headers(scope=scope), scope["path"]
        refusal = self._refusal(headers, path)
        if refusal is not None:
            self._refused(errors.code_of(refusal))
            response = errors.reply(errors.vendor_of(path, headers), refusal)
            await response(scope, receive, reply)
            return
        await self._app(scope, self._limited(receive), reply)

    def _refusal(self, headers: Headers, path: str) -> HTTPException | None:
        if self._key and path not in _OPEN and not path.startswith(_OPEN_UNDER):
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            given = bearer if scheme.lower() == "bearer" else headers.get("x-api-key", "")
            if not secrets.compare_digest(given.strip().encode("utf-8", "replace"), self._key):
                return HTTPException(
                    401,
                    "this server wants its API key (`Authorization: Bearer …` or `x-api-key`)",
                    {"www-authenticate": "Bearer"},
                )
        size = headers.get("content-length", "0")
        if size.isascii() and size.isdigit() and int(size[:20]) > MAX_BODY:
            return self._too_large()
        return None

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"the request's body is larger than {MAX_BODY} bytes")


def _note(scope: Scope, status: int, seconds: float) -> None:
    """A line for the log. Status 0: nobody was there any more to be answered."""
    method, path, client = scope["method"], scope["path"], scope.get("client")
    fields = {
        "method": method,
        "path": path,
        "status": status,
        "seconds": round(seconds, 3),
        "client": client[0] if client else None,
    }
    log.info("%s %s %d", method, path, status, extra={"fields": fields})
