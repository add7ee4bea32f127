"""Errors as each vendor writes them: the status, the JSON, and which vendor a path belongs to."""

import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from pydflash.errors import EngineError, PydflashError, RequestError
from pydflash.server.json import Json

Vendor = Literal["openai", "anthropic"]

# Anthropic's error types by status; OpenAI has fewer.
_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_OPENAI = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
}


def vendor_of(path: str, headers: Mapping[str, str]) -> Vendor:
    """Whose shape a request's errors have: by its path, and elsewhere by the header that Anthropic's
    clients send, whatever it says; `/v1/messages` does not insist on it."""
    theirs = path.startswith("/v1/messages") or "anthropic-version" in headers
    return "anthropic" if theirs else "openai"


def status_of(error: PydflashError) -> int:
    return error.status if isinstance(error, RequestError) else 500


def code_of(error: Exception) -> str:
    """The error in a word, for replies and for the metrics."""
    if isinstance(error, RequestError):
        return error.code
    if isinstance(error, HTTPException):
        return _CODES.get(error.status_code, f"http_{error.status_code}")
    if isinstance(error, RequestValidationError):
        return "invalid_request"
    return "engine_failed" if isinstance(error, EngineError) else "internal_error"


def body(
    vendor: Vendor, status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """An error's JSON."""
    if vendor == "anthropic":
        if code == "context_length_exceeded":
            message = f"prompt is too long: {message}"  # by these words agents know to compact
        elif param:
            message = _pathed(message, param)
        kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
        error: dict[str, Any] = {"type": kind, "message": message}
        return {"type": "error", "error": error, "request_id": "req_" + secrets.token_hex(12)}
    kind = _OPENAI.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(vendor: Vendor, error: PydflashError) -> dict[str, Any]:
    """The JSON of one of our own errors, for a reply or for an event of a stream."""
    param = error.param if isinstance(error, RequestError) else None
    return body(vendor, status_of(error), str(error), code=code_of(error), param=param)


def reply(vendor: Vendor, error: Exception) -> Json:
    """The whole reply to a request that failed before its first byte."""
    if isinstance(error, PydflashError):
        return Json(body_of(vendor, error), status_code=status_of(error))
    if isinstance(error, HTTPException):
        message = str(error.detail)
        if error.status_code == 404 and message == "Not Found":
            message = "unknown endpoint"
        if error.status_code == 400 and message == "There was an error parsing the body":
            message = "the request's body cannot be read: it must be JSON in UTF-8"
        content = body(vendor, error.status_code, message, code=code_of(error))
        return Json(content, status_code=error.status_code, headers=dict(error.headers or {}))
    if isinstance(error, RequestValidationError):
        message, param = _first(error)
        content = body(vendor, 400, message, code=code_of(error), param=param)
        return Json(content, status_code=400)
    content = body(vendor, 500, "an internal error; the server's log has it", code=code_of(error))
    return Json(content, status_code=500)


def _first(error: RequestValidationError) -> tuple[str, str | None]:
    """(message, the field's path) of the first thing that is wrong."""
    found = error.errors()[0]
    if found["type"] == "json_invalid":
        return f"JSON parse error: {found.get('ctx', {}).get('error', found['msg'])}", None
    path = path_of(found["loc"])
    if not path:
        return (
            "the request's body must be a JSON object, sent with `Content-Type: application/json`",
            None,
        )
    return f"{path}: {found['msg'][:1].lower()}{found['msg'][1:]}", path


def _pathed(message: str, param: str) -> str:
    """Anthropic's errors have no field for the path: the message begins with it, in dots."""
    path = re.sub(r"\[(\d+)\]", r".\1", param)
    found = message.replace(param, path)
    return found if found.startswith(path) else f"{path}: {found}"


def path_of(loc: tuple[Any, ...] | list[Any]) -> str:
    """`messages[0].content` of ("body", "messages", 0, "content"); names of types are left out."""
    path = ""
    for part in loc[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            path += f".{part}" if path else part
    return path
