"""The official Anthropic SDK against the application."""

from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import pytest

from pydflash.errors import ContextLengthError, RequestError
from tests.server.live import serving
from tests.server.scripted import Script, ScriptedChat
from tests.server.test_messages_stream import CALL, TOOLS

ANSWER = f"I look.\n</think>\n\nReading it.\n{CALL}"


def ask(service: ScriptedChat, use: Callable[[anthropic.Anthropic], Any]) -> Any:
    """Run `use` with a client of the service."""
    with (
        serving(service) as url,
        anthropic.Anthropic(api_key="none", base_url=url, max_retries=0) as client,
    ):
        return use(client)


def request(**fields: Any) -> dict[str, Any]:
    return {
        "model": "any",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "Hi"}],
        **fields,
    }


def test_a_whole_answer() -> None:
    service = ScriptedChat(Script(pieces=list(ANSWER), thinks=True, cached_tokens=3))
    thinking = {"type": "enabled", "budget_tokens": 1024}
    fields = request(tools=TOOLS, thinking=thinking, max_tokens=1000)
    message = ask(service, lambda c: c.messages.create(**fields))
    thought, text, call = message.content
    assert (thought.type, thought.thinking) == ("thinking", "I look.")
    assert (text.type, text.text) == ("text", "Reading it.")
    assert (call.name, call.input) == ("read_file", {"path": "a b.txt", "lines": 3})
    assert (message.stop_reason, message.model, message.role) == (
        "tool_use",
        "any",
        "assistant",
    )
    assert message.usage.cache_read_input_tokens == 3
    assert message.usage.input_tokens == 8


def test_a_streamed_answer_is_the_same_message() -> None:
    fields = request(tools=TOOLS, max_tokens=1000)

    def use(client: Any) -> tuple[Any, Any, list[str]]:
        with client.messages.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_message()
        return streamed, client.messages.create(**fields), kinds

    service = ScriptedChat(Script(pieces=list(ANSWER), thinks=True))
    streamed, whole, kinds = ask(service, use)
    drop = {"id": True, "content": {2: {"id"}}}
    told = streamed.model_dump(exclude={**drop, "usage": {"timings"}})
    for block in told["content"]:
        block.pop("parsed_output", None)
    assert told == whole.model_dump(exclude={**drop, "usage": {"timings"}})
    assert whole.stop_reason == "tool_use"
    assert kinds.count("input_json") > 3
    assert [r.streamed for r in service.seen.requests] == [True, False]


def test_structured_output() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    service = ScriptedChat(['{"n"', ": 3}"])
    form = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(service, lambda c: c.messages.create(**request(output_config=form)))
    assert message.content[0].text == '{"n": 3}'
    (seen,) = service.seen.requests
    assert seen.constraint is not None
    assert seen.constraint.kind == "json_schema"


def test_models() -> None:
    def use(client: anthropic.Anthropic) -> None:
        (model,) = client.models.list()
        assert (model.id, model.type, model.max_input_tokens) == ("scripted", "model", 4096)
        assert model.created_at.year == 2023
        assert client.models.retrieve("scripted") == model
        with pytest.raises(anthropic.NotFoundError):
            client.models.retrieve("other")

    ask(ScriptedChat(), use)


def test_count_tokens() -> None:
    service = ScriptedChat()
    fields = request(system="Be brief.", messages=[{"role": "user", "content": "Héllo"}])
    del fields["max_tokens"]
    count = ask(service, lambda c: c.messages.count_tokens(**fields))
    assert count.input_tokens == len("[system]Be brief.[user]Héllo".encode())
    assert service.seen.requests == []


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [
        (RequestError("no", status=404), anthropic.NotFoundError, "no"),
        (RequestError("no"), anthropic.BadRequestError, "no"),
        (ContextLengthError("9 > 8"), anthropic.BadRequestError, "prompt is too long: 9 > 8"),
        (RequestError("full", status=503), anthropic.APIStatusError, "full"),
    ],
)
def test_refusals(
    refusal: RequestError, kind: type[anthropic.APIStatusError], message: str
) -> None:
    for stream in (False, True):
        service = ScriptedChat(Script(refusal=refusal))
        with pytest.raises(kind) as caught:
            ask(service, lambda c, s=stream: c.messages.create(**request(stream=s)))
        body = caught.value.body
        assert isinstance(body, dict)
        assert body["type"] == "error"
        assert body["error"]["message"] == message


def test_a_field_of_a_wrong_type_is_named() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": 3}]
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(ScriptedChat(), lambda c: c.messages.create(**request(messages=messages)))
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    assert "messages.1.role: " in str(caught.value)


def test_an_engine_that_fails_tells_it_in_the_stream() -> None:
    service = ScriptedChat(Script(pieces=["a"], error="out of luck"))

    def use(client: Any) -> list[str]:
        kinds = []
        try:
            for event in client.messages.create(**request(stream=True)):
                kinds.append(event.type)
        except anthropic.APIStatusError as error:
            kinds.append(error.message)
        return kinds

    kinds = ask(service, use)
    assert kinds[0] == "message_start"
    assert "out of luck" in kinds[-1]
    assert service.seen.ends == ["failed"]
    with pytest.raises(anthropic.InternalServerError, match="out of luck"):
        ask(service, lambda c: c.messages.create(**request()))


def test_the_bytes_of_a_stream() -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    with serving(ScriptedChat(["Hi"])) as url:
        response = httpx.post(
            f"{url}/v1/messages?beta=true", json=request(stream=True), headers=headers
        )
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.strip().split("\n\n")
    assert frames[1] == 'event: ping\ndata: {"type":"ping"}'
    assert frames[-1] == 'event: message_stop\ndata: {"type":"message_stop"}'
    assert [f.split("\n")[0] for f in frames] == [
        f"event: {name}"
        for name in (
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        )
    ]
