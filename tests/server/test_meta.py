"""What the server says of itself, and what every request passes first."""

import asyncio
import json

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pydflash.config import ServerConfig
from tests.server.conftest import HttpClient, OpenAIClient
from tests.server.scripted import Script, ScriptedChat

pytestmark = pytest.mark.anyio

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


async def test_models(sdk: OpenAIClient, http: HttpClient) -> None:
    client = sdk(ScriptedChat(name="tiny"))
    assert [model.id async for model in client.models.list()] == ["tiny"]
    assert (await client.models.retrieve("tiny")).object == "model"
    with pytest.raises(openai.NotFoundError, match="huge"):
        await client.models.retrieve("huge")
    async with http(ScriptedChat(name="tiny")) as plain:
        codex = (await plain.get("/v1/models?client_version=1")).json()["models"][0]
    assert codex["slug"] == "tiny"
    assert codex["context_window"] == 4096
    efforts = [level["effort"] for level in codex["supported_reasoning_levels"]]
    assert efforts == ["low", "medium", "high", "x-high", "max"]


async def test_text_endpoints(http: HttpClient) -> None:
    async with http(ScriptedChat()) as client:
        tokens = (await client.post("/tokenize", json={"content": "hé"})).json()["tokens"]
        assert tokens == [104, 195, 169]
        text = (await client.post("/detokenize", json={"tokens": tokens})).json()["content"]
        assert text == "hé"
        bad = await client.post("/detokenize", json={"tokens": [999]})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "tokens")
        prompt = (await client.post("/apply-template", json=HELLO)).json()["prompt"]
        assert prompt == "[user]hello"


async def test_health_and_props(http: HttpClient) -> None:
    service = ScriptedChat()
    async with http(service) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        props = (await client.get("/props")).json()
        assert props["server"]["props_schema"] == 2
        assert props["default_generation_settings"]["n_ctx"] == 4096
        assert "/v1/chat/completions" in props["api"]
        service.board.failure = "boom"
        failed = await client.get("/health")
        assert (failed.status_code, failed.json()["message"]) == (503, "boom")


async def test_status_and_metrics_follow_the_requests(http: HttpClient) -> None:
    async with http(ScriptedChat()) as client:
        await client.post("/v1/chat/completions", json=HELLO)
        await client.post("/v1/chat/completions", json={"messages": 3})
        status = (await client.get("/status/json")).json()
        text = (await client.get("/metrics")).text
    assert (status["phase"], status["total_requests"], status["current"]) == ("idle", 1, None)
    assert status["perf_history"][0]["completion_tokens"] == 4
    samples = {
        (s.name, *s.labels.values()): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert samples["pydflash_requests_total",] == 1
    assert samples["pydflash_requests_finished_total", "stop"] == 1
    assert samples["pydflash_completion_tokens_total",] == 4
    assert samples["pydflash_errors_total", "invalid_request"] == 1


async def test_status_events() -> None:
    service = ScriptedChat()
    watch = service.board.watch()
    assert (await anext(watch)).data["phase"] == "idle"
    from pydflash.service.chat import ChatRequest, fold

    await fold(service.stream(ChatRequest()))
    notices = [await anext(watch) for _ in range(7)]
    assert [n.event for n in notices] == ["status", "status", *["token"] * 4, "status"]
    assert [n.data["phase"] for n in notices if n.event == "status"] == [
        "prefill",
        "decode",
        "idle",
    ]
    assert "".join(n.data["text"] for n in notices if n.event == "token") == "Hello, world!"
    await watch.aclose()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/images/generations", "/v1/audio/speech"])
async def test_what_is_not_served_says_so(http: HttpClient, path: str) -> None:
    async with http(ScriptedChat()) as client:
        reply = await client.post(path, json={})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "unsupported_endpoint"
    assert path in reply.json()["error"]["message"]


async def test_errors_have_the_vendors_shape(http: HttpClient) -> None:
    async with http(ScriptedChat()) as client:
        unknown = await client.get("/v1/nothing")
        assert (unknown.status_code, unknown.json()["error"]["message"]) == (
            404,
            "unknown endpoint",
        )
        theirs = await client.get("/v1/messages/nothing")
        assert theirs.json()["type"] == "error"
        assert theirs.json()["error"]["type"] == "not_found_error"
        broken = await client.post(
            "/v1/chat/completions", content=b"{", headers={"content-type": "application/json"}
        )
        assert broken.status_code == 400
        assert broken.json()["error"]["message"].startswith("JSON parse error")
        assert (await client.post("/v1/chat/completions", json=[1])).status_code == 400


async def test_cors(http: HttpClient) -> None:
    async with http(ScriptedChat()) as client:
        preflight = await client.options("/v1/anything")
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "*"
        reply = await client.post("/v1/chat/completions", json={})
        assert reply.headers["access-control-allow-origin"] == "*"
    async with http(ScriptedChat(), ServerConfig(no_cors=True)) as client:
        assert "access-control-allow-origin" not in (await client.get("/health")).headers


async def test_the_key(http: HttpClient, sdk: OpenAIClient) -> None:
    config = ServerConfig(api_key="sesame")
    with pytest.raises(openai.AuthenticationError):
        await sdk(ScriptedChat(), config, "wrong").models.list()
    assert (await sdk(ScriptedChat(), config, "sesame").models.list()).data
    async with http(ScriptedChat(), config) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        theirs = await client.get("/v1/models", headers={"x-api-key": "sesame"})
        assert theirs.status_code == 200


async def test_a_body_that_is_too_large(http: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydflash.server.gate.MAX_BODY", 10_000)
    big = {"messages": [{"role": "user", "content": "x" * 20_000}]}

    async def pieces():
        text = json.dumps(big).encode()
        for at in range(0, len(text), 1000):
            yield text[at : at + 1000]

    async with http(ScriptedChat()) as client:
        headers = {"content-type": "application/json"}
        reply = await client.post("/v1/chat/completions", content=pieces(), headers=headers)
        assert reply.status_code == 413
        declared = await client.post(
            "/v1/chat/completions", headers={**headers, "content-length": str(1 << 40)}
        )
        assert declared.status_code == 413


async def test_a_client_that_leaves_aborts_its_request() -> None:
    """By the ASGI interface itself, as a server would tell it."""
    from pydflash.server.app import create_app

    for streamed in (True, False):
        service = ScriptedChat(Script(pieces=["a"] * 1000, pause=0.01))
        body = json.dumps(HELLO | {"stream": streamed}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict] = []

        async def receive(messages=messages):
            if messages:
                return messages.pop(0)
            await asyncio.sleep(0.1)
            return {"type": "http.disconnect"}

        async def send(message, sent=sent):
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
        }
        await create_app(service)(scope, receive, send)
        assert service.seen.ends == ["aborted"]
        assert service.board.running == []
        assert service.board.totals.finished == {"abort": 1}


async def test_keep_alives_and_stalled_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    from pydflash.server import wire

    monkeypatch.setattr(wire, "KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(wire, "STALL_S", 0.1)
    closed = []

    async def frames():
        try:
            await asyncio.sleep(0.1)
            yield wire.frame({"a": 1})
            yield wire.frame("x\ny", "named")
        finally:
            closed.append(True)

    async def receive():
        await asyncio.Event().wait()

    bodies: list[bytes] = []

    async def send(message):
        bodies.append(message.get("body", b""))

    await wire.EventStream(frames())({}, receive, send)
    text = b"".join(bodies).decode()
    assert text.startswith(": keep-alive\n\n")
    assert text.endswith('data: {"a":1}\n\nevent: named\ndata: x\ndata: y\n\n')

    async def stuck(message):
        if message.get("body"):
            await asyncio.Event().wait()

    await asyncio.wait_for(wire.EventStream(frames())({}, receive, stuck), 5)
    assert closed == [True, True]
