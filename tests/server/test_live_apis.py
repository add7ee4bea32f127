"""SmolLM2 through the Messages and Responses APIs, asked by the official SDKs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from pydflash.config import EngineConfig, ServerConfig, StateConfig
from pydflash.service.build import load
from pydflash.service.service import ChatService
from tests.server.live import serving

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France? Answer in one word."
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
    },
}


@pytest.fixture(scope="module")
def url(smollm2: Path) -> Iterator[str]:
    engine = EngineConfig(state=StateConfig(max_concurrency=4, max_ctx=2048))
    service = ChatService(load(smollm2, engine), ServerConfig(), engine)
    with serving(service) as url:
        yield url
    service.close()


def test_messages(url: str) -> None:
    client = anthropic.Anthropic(api_key="none", base_url=url, max_retries=0)
    fields: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": QUESTION}],
    }
    count = client.messages.count_tokens(**fields)
    fields |= {"max_tokens": 24, "extra_body": {"temperature": 0}}
    reply = client.messages.create(**fields)
    assert reply.content[0].type == "text"
    assert "Paris" in reply.content[0].text
    assert reply.stop_reason == "end_turn"
    usage = reply.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == reply.content[0].text
    assert final.usage.output_tokens == reply.usage.output_tokens


def test_responses(url: str) -> None:
    client = openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0)
    fields: dict[str, Any] = {"model": "smollm2", "input": QUESTION}
    count = client.responses.input_tokens.count(**fields)
    fields |= {"temperature": 0, "max_output_tokens": 24}
    reply = client.responses.create(**fields)
    assert "Paris" in reply.output_text
    assert reply.usage is not None
    assert reply.usage.input_tokens == count.input_tokens
    with client.responses.stream(**fields) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == reply.output_text
    assert events[-1].type == "response.completed"
    cut = client.responses.create(**fields | {"max_output_tokens": 1})
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_a_call_that_is_demanded_comes(url: str) -> None:
    pytest.importorskip("llguidance", reason="demanded calls need pydflash[grammar]")
    claude = anthropic.Anthropic(api_key="none", base_url=url, max_retries=0)
    message = claude.messages.create(
        model="smollm2",
        max_tokens=80,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        tools=[
            {
                "name": TOOL["name"],
                "description": TOOL["description"],
                "input_schema": TOOL["parameters"],
            }
        ],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert call.type == "tool_use"
    assert call.input["city"] in ("Paris", "Rome")
    client = openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0)
    response = client.responses.create(
        model="smollm2",
        max_output_tokens=80,
        temperature=0,
        input="How is the weather in Rome?",
        tools=[{"type": "function", "strict": False, **TOOL}],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert [item.type for item in response.output] == ["function_call"]
