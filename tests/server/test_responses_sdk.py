"""The official OpenAI SDK's Responses against the application."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from pydflash.errors import ContextLengthError
from tests.server.live import serving
from tests.server.scripted import Script, ScriptedChat
from tests.server.test_responses_stream import CALL, TOOLS

ANSWER = f"I look.\n</think>\n\nReading it.\n{CALL}"


class Sum(BaseModel):
    n: int


def ask(service: ScriptedChat, use: Callable[[openai.OpenAI], Any]) -> Any:
    """Run `use` with a client of the service."""
    with (
        serving(service) as url,
        openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0) as client,
    ):
        return use(client)


def request(**fields: Any) -> dict[str, Any]:
    return {"model": "any", "input": "Hi", **fields}


def plain(response: Any) -> dict[str, Any]:
    """Without what differs between two answers to one request."""
    told: dict[str, Any] = response.model_dump()
    for key in ("id", "created_at", "completed_at", "usage"):
        told.pop(key)
    for item in told["output"]:
        item.pop("id")
        for key in ("call_id", "parsed_arguments", "parsed"):
            item.pop(key, None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return told


@pytest.mark.parametrize("summary", [None, "auto"])
def test_a_streamed_answer_is_the_whole_one(summary: str | None) -> None:
    fields = request(tools=TOOLS, reasoning={"effort": "low", "summary": summary})

    def use(client: Any) -> tuple[Any, Any, list[str]]:
        with client.responses.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
        return streamed, client.responses.create(**fields), kinds

    service = ScriptedChat(Script(pieces=list(ANSWER), thinks=True, cached_tokens=3))
    streamed, whole, kinds = ask(service, use)
    assert plain(streamed) == plain(whole)
    thought, _, call = whole.output
    told = thought.summary if summary else thought.content
    assert told[0].text == "I look."
    assert whole.output_text == "Reading it."
    assert (call.name, call.arguments) == ("read_file", '{"path": "a b.txt", "lines": 3}')
    assert (whole.status, whole.model) == ("completed", "scripted")
    assert whole.usage.input_tokens_details.cached_tokens == 3
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    assert "response.function_call_arguments.delta" in kinds
    assert [r.streamed for r in service.seen.requests] == [True, False]


def test_structured_output() -> None:
    service = ScriptedChat(['{"n"', ": 3}"])
    response = ask(service, lambda c: c.responses.parse(**request(text_format=Sum)))
    assert response.output_parsed == Sum(n=3)
    (seen,) = service.seen.requests
    assert seen.constraint is not None
    assert seen.constraint.kind == "json_schema"


def test_a_second_turn_takes_the_first_ones_output() -> None:
    def use(client: Any) -> None:
        first = client.responses.create(**request(tools=TOOLS))
        said = [{"role": "user", "content": "Hi"}, *first.output]
        result = {
            "type": "function_call_output",
            "call_id": first.output[-1].call_id,
            "output": "3 lines",
        }
        client.responses.create(**request(input=[*said, result], tools=TOOLS))

    service = ScriptedChat(Script(pieces=list(ANSWER), thinks=True), ["Done."])
    ask(service, use)
    user, assistant, result = service.seen.requests[1].turns
    assert (user.content, assistant.content, assistant.reasoning) == (
        "Hi",
        "Reading it.",
        "I look.",
    )
    assert assistant.calls[0].id == result.call_id
    assert result.content == "3 lines"


def test_input_tokens() -> None:
    service = ScriptedChat()
    fields = request(instructions="Be brief.", input="Héllo")
    count = ask(service, lambda c: c.responses.input_tokens.count(**fields))
    assert count.input_tokens == len("[system]Be brief.[user]Héllo".encode())
    assert count.object == "response.input_tokens"
    assert service.seen.requests == []


@pytest.mark.parametrize("stream", [False, True])
def test_refusals(stream: bool) -> None:
    service = ScriptedChat(Script(refusal=ContextLengthError("9 > 8")))
    with pytest.raises(openai.BadRequestError) as caught:
        ask(service, lambda c: c.responses.create(**request(stream=stream)))
    assert caught.value.code == "context_length_exceeded"
    fields = request(previous_response_id="resp_1", stream=stream)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(service, lambda c: c.responses.create(**fields))
    assert caught.value.param == "previous_response_id"


def test_nothing_is_stored() -> None:
    with pytest.raises(openai.NotFoundError, match="stores none"):
        ask(ScriptedChat(), lambda c: c.responses.retrieve("resp_1"))
    with pytest.raises(openai.NotFoundError, match="stores none"):
        ask(ScriptedChat(), lambda c: c.responses.delete("resp_1"))


def test_an_engine_that_fails_tells_it_in_the_stream() -> None:
    service = ScriptedChat(Script(pieces=["a"], error="out of luck"))
    events = ask(service, lambda c: list(c.responses.create(**request(stream=True))))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.message == "out of luck"
    assert service.seen.ends == ["failed"]
    with pytest.raises(openai.InternalServerError, match="out of luck"):
        ask(service, lambda c: c.responses.create(**request()))
