"""Fixtures of the server's tests: an application over a script, and clients that need no network."""

from collections.abc import Callable

import httpx
import openai
import pytest

from pydflash.config import ServerConfig
from pydflash.server.app import create_app
from tests.server.scripted import ScriptedChat

HttpClient = Callable[..., httpx.AsyncClient]
OpenAIClient = Callable[..., openai.AsyncOpenAI]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def http() -> HttpClient:
    """Makes an httpx client of a service's application."""

    def make(service: ScriptedChat, config: ServerConfig | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(create_app(service, config), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://server")

    return make


@pytest.fixture
def sdk(http: HttpClient) -> OpenAIClient:
    """Makes the official OpenAI client of a service's application."""

    def make(
        service: ScriptedChat, config: ServerConfig | None = None, key: str = "none"
    ) -> openai.AsyncOpenAI:
        client = http(service, config)
        return openai.AsyncOpenAI(
            api_key=key, base_url="http://server/v1", http_client=client, max_retries=0
        )

    return make
