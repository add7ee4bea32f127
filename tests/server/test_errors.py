"""Errors: in the form of whoever asks, with the field as that API calls it, and counted."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pydflash.config import EngineConfig, RuntimeConfig, ServerConfig, StateConfig
from pydflash.server.app import create_app
from pydflash.service.build import load
from pydflash.service.service import ChatService
from tests.server.conftest import HttpClient
from tests.server.scripted import ScriptedChat

pytestmark = pytest.mark.anyio

ENGINE = EngineConfig(
    runtime=RuntimeConfig(threads=1), state=StateConfig(max_ctx=128, max_concurrency=2)
)
HELLO = [{"role": "user", "content": "hello"}]
LONG = "word " * 400


@pytest.fixture
async def live(tiny_llama: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A tiny model behind the application."""
    service = ChatService(load(tiny_llama, ENGINE), None, ENGINE)
    transport = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client
    service.close()


async def errors_counted(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    families = {f.name: f for f in text_string_to_metric_families(text)}
    samples = families["pydflash_errors"].samples
    return {s.labels["code"]: s.value for s in samples if s.name.endswith("_total")}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("completions", {"prompt": LONG}, "prompt"),
        ("responses", {"input": LONG}, "input"),
        ("completions", {"prompt": [10**6]}, "prompt"),
    ],
)
async def test_a_prompt_is_called_as_the_api_calls_it(
    live: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    reply = await live.post(f"/v1/{path}", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


async def test_anthropics_clients_read_their_own_words(live: httpx.AsyncClient) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": LONG}]}
    reply = (await live.post("/v1/messages", json=body)).json()
    assert reply["type"] == "error"
    assert reply["error"]["message"].startswith("prompt is too long: ")
    wrong = body | {"messages": [*HELLO, {"role": "user", "content": [{"type": "song"}]}]}
    said = (await live.post("/v1/messages", json=wrong)).json()["error"]["message"]
    assert said.startswith("messages.1.content.0.type: ")
    wrong = body | {"output_config": {"format": {"type": "json_schema", "schema": {"type": 3}}}}
    said = (await live.post("/v1/messages", json=wrong)).json()["error"]["message"]
    assert said.startswith("output_config.format.schema")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "chat/completions",
            {
                "messages": HELLO,
                "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 3}}},
            },
            "response_format",
        ),
        (
            "responses",
            {
                "input": "x",
                "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": 3}}},
            },
            "text.format.schema",
        ),
    ],
)
async def test_a_bad_schema_is_said_of_its_field(
    live: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    reply = await live.post(f"/v1/{path}", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("version", ["2023-06-01", "yesterday", ""])
async def test_the_header_says_whose_client_it_is(http: HttpClient, version: str) -> None:
    async with http(ScriptedChat(name="tiny"), ServerConfig(api_key="k")) as client:
        theirs = {"anthropic-version": version, "x-api-key": "k"}
        page = (await client.get("/v1/models", headers=theirs)).json()
        assert page["data"][0]["type"] == "model"
        assert (page["first_id"], page["last_id"], page["has_more"]) == ("tiny", "tiny", False)
        missing = await client.get("/v1/models/huge", headers=theirs)
        assert missing.status_code == 404
        assert missing.json()["type"] == "error"
        assert missing.json()["error"]["type"] == "not_found_error"
        keyless = await client.get("/v1/models", headers={"anthropic-version": version})
        assert keyless.json()["error"]["type"] == "authentication_error"
        assert keyless.json()["type"] == "error"


async def test_without_the_header_models_err_as_openai_does(http: HttpClient) -> None:
    async with http(ScriptedChat(name="tiny")) as client:
        missing = await client.get("/v1/models/huge")
        assert missing.json()["error"]["code"] == "model_not_found"
        body = {"max_tokens": 9, "messages": HELLO}
        assert (await client.post("/v1/messages", json=body)).json()["type"] == "message"


async def test_every_refusal_is_counted(live: httpx.AsyncClient) -> None:
    chat = "/v1/chat/completions"
    asked = [
        live.post(chat, json={"messages": 3}),
        live.post(chat, content=b"{", headers={"content-type": "application/json"}),
        live.post(chat, content=b'{"a": "\xff"}', headers={"content-type": "application/json"}),
        live.post(chat, json={"messages": HELLO, "tool_choice": "required"}),
        live.post(chat, json={"messages": [{"role": "user", "content": LONG}]}),
        live.post("/v1/messages", json={"messages": []}),
        live.post("/v1/embeddings", json={}),
        live.post("/detokenize", json={"tokens": [10**6]}),
        live.get("/v1/nothing"),
        live.get("/v1/messages"),
    ]
    for one in asked:
        assert (await one).status_code >= 400
    assert await errors_counted(live) == {
        "invalid_request": 5,
        "token_out_of_range": 1,
        "context_length_exceeded": 1,
        "unsupported_endpoint": 1,
        "not_found": 1,
        "method_not_allowed": 1,
    }


async def test_what_does_not_pass_the_gate_is_counted(
    http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydflash.server.gate.MAX_BODY", 1000)
    async with http(ScriptedChat(), ServerConfig(api_key="k")) as client:
        assert (await client.get("/v1/models")).status_code == 401
        body = json.dumps({"messages": [{"role": "user", "content": "x" * 2000}]})
        client.headers["x-api-key"] = "k"
        reply = await client.post("/v1/chat/completions", content=body)
        assert reply.status_code == 413
        counted = await errors_counted(client)
    assert counted == {"invalid_api_key": 1, "too_large": 1}
