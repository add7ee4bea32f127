"""FakeServer: the pages' router beside endpoints that answer from a script, on a real port.

The last word said chooses the script (see `_script`); what the page sent is kept in `requests`.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from pydflash.server.pages import router

ANSWER = """## Why the sky is blue

Sunlight is **scattered** by air. *Short* waves scatter most:

| colour | wavelength | share |
|:--|:-:|--:|
| blue | 450 nm | 4.4 |
| red | 700 nm | 0.8 |

1. Light arrives.
2. Air scatters it, see [Rayleigh](https://example.org/rayleigh).
   - blue more
   - red less

```python
def scattered(wavelength: float) -> float:
    return wavelength**-4  # <b>no tag</b>
```

> So the sky has the colour of what is scattered: `blue`.
"""
THOUGHT = "The user asks about the sky. I should name Rayleigh scattering and keep it short."
CALL = {"city": "Athens", "days": 3}
USAGE = {
    "prompt_tokens": 42,
    "completion_tokens": 128,
    "total_tokens": 170,
    "prompt_tokens_details": {"cached_tokens": 30},
    "timings": {"decode_tokens_per_sec": 31.4},
    "draft": {"acceptance_length": 2.75},
}
TREE = {
    "tokens": [" sky", " is", " has", " blue", " a", " the", " because", " of"],
    "parents": [-1, 0, 0, 1, 1, 2, 3, 6],
    "path": [0, 1, 3, 6],
    "drawn": " the",
}


def delta(**fields: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": fields}]}


def finish(reason: str = "stop") -> list[dict[str, Any]]:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return [end, {"choices": [], "usage": USAGE}]


def words(text: str) -> list[str]:
    return [piece + " " for piece in text.split(" ")]


def _script(prompt: str) -> list[dict[str, Any] | None]:
    """The chunks of an answer; None closes the connection there."""
    if prompt.endswith("think"):
        thought = [delta(reasoning_content=word) for word in words(THOUGHT)]
        return [*thought, delta(content="It is blue."), *finish()]
    if prompt.endswith("tool"):
        text = json.dumps(CALL)
        head = {"index": 0, "id": "call_1", "type": "function"}
        first = delta(tool_calls=[{**head, "function": {"name": "forecast", "arguments": ""}}])
        rest = [delta(tool_calls=[{"index": 0, "function": {"arguments": c}}]) for c in text]
        return [first, *rest, *finish("tool_calls")]
    if prompt.endswith("break"):
        return [delta(content="Half an answ"), None]
    if prompt.endswith("fail"):
        return [delta(content="Some."), {"error": {"message": "the engine ran out of pages"}}, None]
    if prompt.endswith("short"):
        return [delta(content="Cut here"), *finish("length")]
    if prompt.endswith("endless"):
        return [delta(content=f"word{i} ") for i in range(10_000)]
    return [
        delta(role="assistant", content=""),
        *(delta(content=w) for w in words(ANSWER)),
        *finish(),
    ]


class FakeServer:
    """Started by `with`; `url` ends in a slash. `key`, when set, is asked for by every endpoint."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.left = threading.Event()
        self.key = ""
        self.pause_s = 0.004
        self._acceptance = 2.0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        config = uvicorn.Config(self._app(), log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def _app(self) -> FastAPI:
        app = FastAPI()
        app.include_router(router)

        @app.middleware("http")
        async def guard(request: Request, call_next: Any) -> Response:
            is_page = request.url.path in ("/", "/status") or "/static/" in request.url.path
            sent = request.headers.get("authorization", "")
            if is_page or not self.key or sent == f"Bearer {self.key}":
                return await call_next(request)
            return JSONResponse({"error": {"message": "bad key"}}, status_code=401)

        @app.get("/v1/models")
        def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "scripted-1b", "object": "model"}]}

        @app.get("/props")
        def props() -> dict[str, Any]:
            return {"default_generation_settings": {"temperature": 0.7, "top_k": 20}}

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            body = await request.json()
            self.requests.append(body)
            prompt = body["messages"][-1]["content"]
            if prompt.endswith("refuse"):
                error = {"message": "prompt of 9000 tokens does not fit in 8192"}
                return JSONResponse({"error": error}, status_code=400)
            return StreamingResponse(self._stream(prompt), media_type="text/event-stream")

        @app.get("/status/json")
        def status() -> dict[str, Any]:
            return self._status()

        @app.get("/status/events")
        async def events() -> Response:
            return StreamingResponse(self._events(), media_type="text/event-stream")

        return app

    async def _stream(self, prompt: str) -> AsyncIterator[str]:
        self.left.clear()
        try:
            yield ": keep-alive\n\n"
            for chunk in _script(prompt):
                if chunk is None:
                    return
                yield f"data: {json.dumps(chunk)}\n\n"
                await asyncio.sleep(self.pause_s)
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.left.set()
            raise

    def _status(self) -> dict[str, Any]:
        self._acceptance = 2.0 + (self._acceptance * 7.3) % 1.5
        past = {"prefill_tok_s": 412.5, "decode_tok_s": 31.4, "acceptance_length": 2.75}
        return {
            "phase": "decode",
            "model": "scripted-1b",
            "running": 2,
            "waiting": 1,
            "total_requests": 17,
            "uptime_s": 300,
            "tokens_per_second": 20 + 5 * self._acceptance,
            "acceptance_length": self._acceptance,
            "current": {
                "prompt_excerpt": "Why is the sky blue?",
                "prompt_tokens": 42,
                "completion_tokens": 12,
                "max_output": 512,
                "elapsed_s": 1.5,
            },
            "perf_history": [
                {**past, "prompt_tokens": n, "completion_tokens": 128} for n in (42, 90)
            ],
            "draft_trees": [TREE],
            "cache": {"pages_total": 1024, "pages_used": 300, "lifetime_hits": 5},
        }

    async def _events(self) -> AsyncIterator[str]:
        for word in words("The sky is blue because <b>air</b> scatters light."):
            yield f"event: status\ndata:{json.dumps(self._status())}\n\n"
            yield f"event: token\ndata:{json.dumps({'text': word})}\n\n"
            await asyncio.sleep(0.6)
        while True:
            yield ":heartbeat\n\n"
            await asyncio.sleep(0.5)
