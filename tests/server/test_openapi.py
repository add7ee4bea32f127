"""The OpenAPI page taken at its word: whatever fits it, or just does not, is answered and never a 500.

schemathesis makes the requests; they go through a real socket to a live engine with a tiny model.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, openapi
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation

from pydflash.config import EngineConfig, RuntimeConfig, ServerConfig, StateConfig
from pydflash.server.app import create_app
from pydflash.service.build import load
from pydflash.service.service import ChatService
from tests.server.live import serving
from tests.server.scripted import ScriptedChat

ENGINE = EngineConfig(
    runtime=RuntimeConfig(threads=1), state=StateConfig(max_ctx=256, max_concurrency=4)
)
SCHEMA = openapi.from_dict(create_app(ScriptedChat()).openapi())
ENDLESS = "/status/events"
OPERATIONS: list[APIOperation[Any, Any, Any, Any]] = [
    found.ok() for found in SCHEMA.get_all_operations() if found.ok().path != ENDLESS
]
TAKING = [operation for operation in OPERATIONS if operation.body]
STATUSES = {200, 400, 404, 405, 413}
QUICK, MANY = 5, 5000


@pytest.fixture(scope="module")
def service(tiny_llama: Path) -> Iterator[ChatService]:
    service = ChatService(load(tiny_llama, ENGINE), ServerConfig(default_max_tokens=8), ENGINE)
    yield service
    service.close()


@pytest.fixture(scope="module")
def url(service: ChatService) -> Iterator[str]:
    with serving(service) as url:
        yield url


def cases(operation: APIOperation[Any, Any, Any, Any]) -> st.SearchStrategy[Case]:
    """What fits the page; where an operation takes a body, also what does not."""
    fits = operation.as_strategy(GenerationMode.POSITIVE)
    if not operation.body:
        return fits
    return st.one_of(fits, operation.as_strategy(GenerationMode.NEGATIVE))


def check(operation: APIOperation[Any, Any, Any, Any], url: str, examples: int) -> int:
    """The number of requests made."""
    made = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(operation))
    def holds(case: Case) -> None:
        nonlocal made
        made += 1
        response = case.call(base_url=url, timeout=60)
        assert response.status_code in STATUSES, (response.status_code, response.text)
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error["message"]
            assert error["type"]

    holds()
    return made


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_requests_are_answered(operation: APIOperation[Any, Any, Any, Any], url: str) -> None:
    assert check(operation, url, QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("operation", TAKING, ids=lambda operation: operation.label)
def test_thousands_of_requests_are_answered(
    operation: APIOperation[Any, Any, Any, Any], url: str, service: ChatService
) -> None:
    """5,000 in all."""
    share = -(-MANY // len(TAKING))
    assert check(operation, url, share) >= share
    assert service.board.failure is None
