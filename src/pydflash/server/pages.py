"""The pages for people: chat at `/`, figures at `/status`, the API at `/docs`, and their files.

Everything comes out of this package's `static` folder; a page asks no other host for anything, and the
content policy sent with it holds the browser to that. The pages need no API key: they ask for one when
the endpoints they call do.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import JSONResponse

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked about each time: a new version shows at once
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file: its bytes, media type and entity tag."""

    body: bytes
    media_type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """Every file of the pages by name, read once. A name not in here is not served."""
    out = {}
    for file in resources.files(__package__).joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in TYPES:
            body = file.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            out[file.name] = Asset(body, TYPES[suffix], tag)
    return out


def wants_json(accept: str) -> bool:
    """Whether an Accept header asks for JSON by name, and not for a page at least as much.

    `*/*` asks for nothing in particular and gets the page. RFC 9110, 12.5.1.
    """
    weights: dict[str, float] = {}
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        weights[kind] = max(weight, weights.get(kind, 0.0))
    return weights.get("application/json", 0.0) > weights.get("text/html", 0.0)


@router.api_route("/", methods=["GET", "HEAD"])
def chat_page(request: Request) -> Response:
    """The chat for browsers; for clients that ask for JSON, that the server is there."""
    if wants_json(request.headers.get("accept", "")):
        return JSONResponse({"status": "ok"}, headers={"Vary": "Accept"})
    response = _answer("index.html", request)
    response.headers["Vary"] = "Accept"
    return response


@router.api_route("/status", methods=["GET", "HEAD"])
def status_page(request: Request) -> Response:
    return _answer("status.html", request)


@router.api_route("/docs", methods=["GET", "HEAD"])
def docs_page(request: Request) -> Response:
    """The endpoints and their fields, out of `/openapi.json`."""
    return _answer("docs.html", request)


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
def static_file(name: str, request: Request) -> Response:
    return _answer(name, request)


def _answer(name: str, request: Request) -> Response:
    asset = assets().get(name)
    if asset is None:
        raise HTTPException(404, f"there is no file {name!r} here")
    headers = {**HEADERS, "ETag": asset.tag}
    if asset.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, media_type=asset.media_type, headers=headers)
