"""Speculation changes nothing but time: the same request with and without drafts, through every API.

Whole replies are compared but for ids, times and draft figures; so are streams, event by event, since each
event is made of one token or of several that say nothing apart.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pydflash.config import EngineConfig, RuntimeConfig, ServerConfig, SpecConfig, StateConfig
from pydflash.service.build import load
from pydflash.service.service import ChatService
from tests.server.live import serving
from tests.server.test_service import THINKING

# What may differ: names made up for an answer, times, and how drafts fared.
OURS = {
    *("id", "item_id", "call_id", "tool_call_id", "created", "created_at", "completed_at"),
    *("timings", "accept_rate", "acceptance_length", "request_id"),
    *("accepted_prediction_tokens", "rejected_prediction_tokens"),
}
SAYS = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Count: one two three one two three one two"},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Berlin"]},
        "days": {"type": "integer"},
        "notes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["city", "days", "notes"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "Looks up the weather", "parameters": SCHEMA}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 60, "seed": 11}
GREEDY = {"temperature": 0}
TOP = {"logprobs": True, "top_logprobs": 3}
PENALTIES = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_p": 0.02}

CHAT: dict[str, dict[str, Any]] = {
    "greedy": GREEDY | TOP,
    "sampled, two choices": SAMPLED | TOP | {"n": 2},
    "penalties": SAMPLED | PENALTIES,
    "stop strings": SAMPLED | TOP | {"stop": ["e", "two t", "\n"], "seed": 3},
    "tools, if it likes": SAMPLED | {"tools": CHAT_TOOLS},
    "one call": SAMPLED
    | {"tools": CHAT_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    "calls": GREEDY | {"tools": CHAT_TOOLS, "tool_choice": "required", "max_tokens": 90},
    "schema": SAMPLED
    | TOP
    | {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "regex": SAMPLED | {"regex": "(one|two|three)( (one|two|three)){2,9}"},
    "thought": SAMPLED | TOP | {"reasoning": {"effort": "low"}},
    "thought, then a schema": GREEDY
    | {
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    },
}
RESPONSES: dict[str, dict[str, Any]] = {
    "sampled": SAMPLED | {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "call": SAMPLED | {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
    "schema": GREEDY | {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
    "thought": SAMPLED | {"reasoning": {"effort": "low", "summary": "auto"}},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "stop": SAMPLED | {"stop_sequences": ["three", "q"]},
    "call": SAMPLED
    | {
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    },
    "schema": GREEDY | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "thought": SAMPLED | {"thinking": {"type": "enabled", "budget_tokens": 20}},
}
TEXT: dict[str, dict[str, Any]] = {
    "sampled, two choices": SAMPLED | {"logprobs": 2, "n": 2, "prompt": ["one two one", "a b a"]},
    "stop": GREEDY | {"stop": " t", "ignore_eos": True},
}
CASES = [
    pytest.param(path, base | fields, id=f"{path} {name}")
    for path, base, cases in (
        ("/v1/chat/completions", {"messages": SAYS, "max_tokens": 40}, CHAT),
        ("/v1/responses", {"input": SAYS, "max_output_tokens": 40}, RESPONSES),
        ("/v1/messages", {"messages": SAYS, "max_tokens": 40}, MESSAGES),
        ("/v1/completions", {"prompt": "one two three one two", "max_tokens": 40}, TEXT),
    )
    for name, fields in cases.items()
]


def stripped(value: Any) -> Any:
    """The value without what may differ."""
    if isinstance(value, dict):
        return {key: stripped(item) for key, item in value.items() if key not in OURS}
    return [stripped(item) for item in value] if isinstance(value, list) else value


def told(text: str) -> list[Any]:
    """A stream's events, each choice's after the other's: they come as they like."""
    events = [
        json.loads(line[len("data: ") :])
        for line in text.splitlines()
        if line.startswith("data: {")
    ]
    assert not any("error" in event for event in events if event.get("type") == "error")

    def choice(event: dict[str, Any]) -> int:
        choices = event.get("choices")
        return choices[0]["index"] if choices else 99

    return stripped(sorted(events, key=choice))


def ask(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    body = body | {"prefix_cache": {"scope": "off"}}  # else the second reads less of its prompt
    reply = httpx.post(url + path, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatService]:
    template = tmp_path_factory.mktemp("template") / "thinking.jinja"
    template.write_text(THINKING)
    engine = EngineConfig(
        runtime=RuntimeConfig(threads=1),
        state=StateConfig(max_concurrency=4),
        spec=SpecConfig(ddtree_budget=7),  # it drafts every round, whatever comes of it
    )
    config = ServerConfig(chat_template_file=str(template), reasoning_effort_low=16)
    service = ChatService(load(tiny_llama, engine), config, engine)
    yield service
    service.close()


@pytest.fixture(scope="module")
def url(tiny: ChatService) -> Iterator[str]:
    with serving(tiny) as url:
        yield url


@pytest.mark.parametrize(("path", "body"), CASES)
def test_a_tiny_model(tiny: ChatService, url: str, path: str, body: dict[str, Any]) -> None:
    pytest.importorskip("llguidance", reason="constraints need pydflash[grammar]")
    before = tiny.board.totals.draft.nodes
    on = ask(url, path, body).json()
    drafted = tiny.board.totals.draft.nodes - before
    off = ask(url, path, body | {"speculate": False}).json()
    assert tiny.board.totals.draft.nodes == before + drafted
    assert stripped(on) == stripped(off)
    streams = [
        told(ask(url, path, body | {"stream": True, "speculate": speculate}).text)
        for speculate in (True, False)
    ]
    assert streams[0] == streams[1]
    assert len(streams[0]) > 3


def test_drafts_were_made(tiny: ChatService, url: str) -> None:
    """Else the tests above would compare like with like."""
    before = tiny.board.totals.draft.nodes
    ask(url, "/v1/chat/completions", {"messages": SAYS, "max_tokens": 60, "ignore_eos": True})
    assert tiny.board.totals.draft.nodes > before


@pytest.fixture(scope="module")
def smollm2_url(smollm2: Path) -> Iterator[str]:
    engine = EngineConfig(
        state=StateConfig(max_concurrency=2, max_ctx=1024),
        spec=SpecConfig(ddtree_budget=7),  # adaptive trees stay away from a busy machine
    )
    service = ChatService(load(smollm2, engine), ServerConfig(reasoning_effort_low=16), engine)
    assert service.facts.drafting == "dflash"
    with serving(service) as url:
        yield url
    assert service.board.totals.draft.accepted_nodes > 20
    service.close()


SHORT = (
    "greedy",
    "stop strings",
    "one call",
    "regex",
    "schema",
    "chat/completions thought",
    "stop",
)


@pytest.mark.model
@pytest.mark.parametrize(("path", "body"), [case for case in CASES if str(case.id).endswith(SHORT)])
def test_smollm2_with_its_drafter(smollm2_url: str, path: str, body: dict[str, Any]) -> None:
    pytest.importorskip("llguidance", reason="constraints need pydflash[grammar]")
    body = {k: min(v, 28) if k.startswith("max_") else v for k, v in body.items()}
    on = ask(smollm2_url, path, body)
    off = ask(smollm2_url, path, body | {"speculate": False})
    assert stripped(on.json()) == stripped(off.json())
    assert "acceptance_length" in on.text
    assert "acceptance_length" not in off.text
