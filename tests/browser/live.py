"""LiveServer: the real application on a real port, with scripts instead of a model.

The last word said chooses the script (see `PageChat._next`); what the page sent is kept in `requests`.
"""

import json
import socket
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import uvicorn

from pydflash.config import ServerConfig
from pydflash.errors import RequestError
from pydflash.server.app import create_app
from pydflash.service.chat import ChatEvent, ChatFinished, ChatRequest
from pydflash.service.events import Timings
from pydflash.service.status import Running
from pydflash.spec.stats import DraftStats
from tests.server.scripted import Script, ScriptedChat

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
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "forecast",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
CALL_TEXT = (
    "<tool_call>\n<function=forecast>\n<parameter=city>\nAthens\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
TREE = {
    "tokens": [" sky", " is", " has", " blue", " a", " the", " because", " of"],
    "parents": [-1, 0, 0, 1, 1, 2, 3, 6],
    "path": [0, 1, 3, 6],
    "drawn": " the",
}


# What a server may say of itself, every part of it.
STATUS: dict[str, Any] = {
    "phase": "decode",
    "model": "scripted-1b",
    "running": 2,
    "waiting": 1,
    "total_requests": 17,
    "uptime_s": 300,
    "tokens_per_second": 31.4,
    "acceptance_length": 2.5,
    "current": {
        "prompt_excerpt": "Why is the sky blue?",
        "prompt_tokens": 42,
        "completion_tokens": 12,
        "max_output": 512,
        "elapsed_s": 1.5,
    },
    "perf_history": [
        {
            "prefill_tok_s": 412.5,
            "decode_tok_s": 31.4,
            "acceptance_length": 2.75,
            "prompt_tokens": prompt,
            "completion_tokens": 128,
        }
        for prompt in (42, 90)
    ],
    "draft_trees": [TREE],
    "cache": {"pages_total": 1024, "pages_used": 300, "lifetime_hits": 5},
}


def words(text: str) -> list[str]:
    return [piece + " " for piece in text.split(" ")]


class PageChat(ScriptedChat):
    """Chooses its script by the prompt's last word, and adds the figures of a drafter."""

    def __init__(self) -> None:
        super().__init__(name="scripted-1b")
        self.pause_s = 0.004

    def _next(self) -> Script:
        content = self.seen.requests[-1].turns[-1].content
        assert isinstance(content, str)
        script = Script(pieces=words(ANSWER), prompt_tokens=42, cached_tokens=30)
        match content.split()[-1]:
            case "think":
                pieces = [*words(THOUGHT), "</think>", "\n\n", "It is blue."]
                script = replace(script, pieces=pieces, thinks=True)
            case "tool":
                script = replace(
                    script, pieces=[CALL_TEXT[i : i + 3] for i in range(0, len(CALL_TEXT), 3)]
                )
            case "short":
                script = replace(script, pieces=["It ", "is ", "blue."])
            case "fail":
                script = replace(script, pieces=["Some."], error="the engine ran out of pages")
            case "refuse":
                error = RequestError("prompt of 9000 tokens does not fit in 8192")
                script = replace(script, refusal=error)
            case "endless":
                script = replace(script, pieces=[f"word{i} " for i in range(2000)])
        return replace(script, pause=self.pause_s)

    async def _answer(
        self, request: ChatRequest, script: Script, running: Running
    ) -> AsyncGenerator[ChatEvent, None]:
        self.board.trees.append(TREE)
        async for event in super()._answer(request, script, running):
            if isinstance(event, ChatFinished):
                draft = DraftStats(rounds=40, nodes=200, accepted_nodes=70, tokens=110)
                rates = {"prefill_tps": 412.5, "decode_tps": 31.4}
                timings = Timings(prefill_s=0.1, decode_s=4.0, first_token_s=0.1, **rates)
                event = replace(event, usage=replace(event.usage, draft=draft), timings=timings)
            yield event


class LiveServer:
    """Started by `with`; `url` ends in a slash."""

    def __init__(self, key: str = "") -> None:
        self.service = PageChat()
        self.requests: list[dict[str, Any]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        app = create_app(self.service, ServerConfig(api_key=key))
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def note(self, url: str, body: str | None) -> None:
        """Keep the body of a chat request that the page makes."""
        if url == f"{self.url}v1/chat/completions" and body:
            self.requests.append(json.loads(body))

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()
