"""How much an answer may be, what it may use, and what makes it end, over a tiny model."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pydflash.config import EngineConfig, RuntimeConfig, ServerConfig, StateConfig
from pydflash.server.app import create_app
from pydflash.service.build import load
from pydflash.service.service import ChatService
from tests.server.conftest import HttpClient, OpenAIClient
from tests.server.scripted import ScriptedChat

pytestmark = pytest.mark.anyio

ENGINE = EngineConfig(
    runtime=RuntimeConfig(threads=1), state=StateConfig(max_ctx=512, max_concurrency=2)
)
HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"ignore_eos": True, "temperature": 1.0, "seed": 1}
BODIES = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"messages": HELLO},
    "/v1/responses": {"input": "hello"},
}


def service_of(path: Path, **options: Any) -> ChatService:
    return ChatService(load(path, ENGINE), ServerConfig(**options), ENGINE)


def client_of(service: ChatService) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://server")


@pytest.fixture
async def client(tiny_llama: Path) -> AsyncIterator[httpx.AsyncClient]:
    service = service_of(tiny_llama, default_max_tokens=5)
    async with client_of(service) as client:
        yield client
    service.close()


def used(reply: httpx.Response) -> tuple[int, int, int]:
    """Tokens of the prompt, those of it that were cached, tokens of the answer."""
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
    if "cache_read_input_tokens" in usage:
        prompt += cached
    return prompt, cached, usage.get("completion_tokens", usage.get("output_tokens"))


def limit(path: str, tokens: int) -> dict[str, int]:
    return {"max_output_tokens" if path == "/v1/responses" else "max_tokens": tokens}


@pytest.mark.parametrize("path", BODIES)
async def test_minus_one_is_no_limit(client: httpx.AsyncClient, path: str) -> None:
    body = BODIES[path] | ASKED
    assert used(await client.post(path, json=body))[2] == 5, "the server's own limit"
    prompt, _, answer = used(await client.post(path, json=body | limit(path, -1)))
    assert prompt + answer == 512
    assert used(await client.post(path, json=body | limit(path, 7)))[2] == 7


@pytest.mark.parametrize("path", BODIES)
async def test_none_reads_the_prompt_and_answers_nothing(
    client: httpx.AsyncClient, path: str
) -> None:
    long = "word " * 80
    texts = {"prompt": long, "input": long, "messages": [{"role": "user", "content": long}]}
    body = {key: texts[key] for key in BODIES[path]} | ASKED
    first = await client.post(path, json=body | limit(path, 0))
    prompt, cached, answer = used(first)
    assert (cached, answer) == (0, 0)
    assert "word" not in first.text
    reply = first.json()
    ended = reply.get("stop_reason") or reply.get("status") or reply["choices"][0]["finish_reason"]
    assert ended in ("length", "max_tokens", "incomplete")
    assert used(await client.post(path, json=body))[1] >= 256, "it was kept"
    streamed = await client.post(path, json=body | limit(path, 0) | {"stream": True})
    assert streamed.status_code == 200
    assert prompt > 256


async def test_the_prefix_cache_can_be_left_out(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 80}]} | ASKED
    off = body | {"prefix_cache": {"scope": "off"}}
    path = "/v1/chat/completions"
    first = await client.post(path, json=off)
    assert used(first)[1] == 0
    assert used(await client.post(path, json=body))[1] == 0, "the first left nothing"
    assert used(await client.post(path, json=body))[1] >= 256
    again = await client.post(path, json=off)
    assert used(again)[1] == 0
    text = [reply.json()["choices"][0]["message"]["content"] for reply in (first, again)]
    assert text[0] == text[1]
    for scope in ("full", "auto", "auto:30", "4096", 4096):
        assert used(await client.post(path, json=body | {"prefix_cache": {"scope": scope}}))[1]
    for scope in ("some", "auto:", "0", 0, "1000001", None):
        reply = await client.post(path, json=body | {"prefix_cache": {"scope": scope}})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "prefix_cache.scope"


async def test_prompts_and_choices_together_are_bounded(sdk: OpenAIClient) -> None:
    ask = sdk(ScriptedChat()).completions.create
    assert len((await ask(model="x", prompt=["a"] * 32, n=4)).choices) == 128
    for prompts, n, param in ((33, 4, "n"), (129, 1, "prompt"), (64, 64, "n")):
        with pytest.raises(openai.BadRequestError, match="128") as caught:
            await ask(model="x", prompt=["a"] * prompts, n=n)
        assert caught.value.param == param


async def test_a_reply_budget_reaches_the_decision(http: HttpClient) -> None:
    service = ScriptedChat()
    body = {
        "messages": HELLO,
        "thinking": {"type": "enabled", "budget_tokens": 1024, "reply_budget": 77},
    }
    async with http(service) as client:
        assert (await client.post("/v1/messages", json=body)).status_code == 200
    thinking = service.seen.requests[0].thinking
    assert (thinking.budget_tokens, thinking.reply_budget) == (1024, 77)


async def test_an_answer_of_one_token_only_is_ended(tiny_llama: Path) -> None:
    service = service_of(tiny_llama, degenerate_run_tokens=6)
    body = {"messages": HELLO, "ignore_eos": True, "max_tokens": 40, "logit_bias": {"70": 1000}}
    try:
        async with client_of(service) as client:
            replies = [
                await client.post("/v1/chat/completions", json=body | {"speculate": speculate})
                for speculate in (True, False)
            ]
    finally:
        service.close()
    for reply in replies:
        choice = reply.json()["choices"][0]
        assert choice["finish_reason"] == "length"
        assert choice["finish_details"]["degenerate_decode"] is True
        assert used(reply)[2] == 6


async def test_older_names_of_options(tiny_llama: Path) -> None:
    for options, most in (
        ({"max_tokens": 9}, 9),
        ({"max_tokens": 9, "default_max_tokens": 7}, 7),
        ({"max_tokens": 10**6}, 512),
    ):
        service = service_of(tiny_llama, **options)
        service.close()
        assert service.facts.max_tokens == most
