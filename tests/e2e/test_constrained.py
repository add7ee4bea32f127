"""Constrained answers end to end: the same with drafts on and off, whole, and of the constraint."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pydflash.cli.main import main
from pydflash.config import EngineConfig, SpecConfig, StateConfig
from pydflash.errors import RequestError
from pydflash.sampling.params import SamplingParams
from pydflash.service.constraint import Constraint
from pydflash.service.llm import LLM, Completion, fold
from pydflash.text.formats import HERMES
from pydflash.text.stream import fold as fold_events
from pydflash.text.toolset import Tool, Toolset
from tests.text.split import events

SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "size": {"enum": ["small", "large"]},
        "rows": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 999},
            "minItems": 2,
            "maxItems": 4,
        },
    },
    "required": ["ok", "size", "rows"],
    "additionalProperties": False,
}
JSON = Constraint(kind="json_schema", text=json.dumps(SCHEMA))
REGEX = Constraint(kind="regex", text=r"(ab|cd){12,15} [0-9]{4}!")
LARK = Constraint(kind="grammar", text='start: item ("," item)~9\nitem: /[a-c]{1,3}/')


def holds(constraint: Constraint | None, text: str) -> bool:
    if constraint is JSON:
        value = json.loads(text)
        rows = value["rows"]
        return (
            list(value) == ["ok", "size", "rows"]
            and type(value["ok"]) is bool
            and value["size"] in ("small", "large")
            and 2 <= len(rows) <= 4
            and all(type(n) is int and 0 <= n <= 999 for n in rows)
        )
    if constraint is REGEX:
        return re.fullmatch(constraint.text, text) is not None
    if constraint is LARK:
        return re.fullmatch(r"[a-c]{1,3}(,[a-c]{1,3}){9}", text) is not None
    return True


@pytest.fixture(scope="module")
def llm(tiny_llama: Path):
    state = StateConfig(max_concurrency=4, max_ctx=256)
    with LLM(
        tiny_llama, config=EngineConfig(state=state, spec=SpecConfig(draft="lookup"))
    ) as model:
        yield model


def ask(llm: LLM, *, speculate: bool) -> list[Completion]:
    """Constrained and free requests together, greedy and sampled."""
    asked = []
    for i, constraint in enumerate((JSON, None, REGEX, LARK)):
        cool = SamplingParams(
            max_tokens=150 if constraint else 40, seed=i, temperature=i % 2 * 1.2, logprobs=1
        )
        hot = replace(cool, temperature=1.5, top_p=0.95, filtered_logprobs=True)
        for params in (cool, hot):
            tokens = llm.encode("ab" * 9 + ", 12 12 12 " * 3)
            asked.append(llm.start(tokens, params, speculate=speculate, constraint=constraint))
    return [fold(answer) for answer in asked]


def test_drafts_change_nothing(llm: LLM) -> None:
    plain, drafted = ask(llm, speculate=False), ask(llm, speculate=True)
    assert [c.tokens for c in drafted] == [c.tokens for c in plain]
    assert [c.logprobs for c in drafted] == [c.logprobs for c in plain]
    constraints = [c for c in (JSON, None, REGEX, LARK) for _ in range(2)]
    for constraint, answer in zip(constraints, drafted, strict=True):
        assert holds(constraint, answer.text), answer.text
        if constraint is not None:
            assert answer.finish.reason == "stop"
        if constraint in (JSON, REGEX):
            assert answer.finish.stop is None, "the grammar ended it, no token did"
    taken = [c.finish.draft.accepted_nodes for c in drafted if c.finish.draft]
    assert sum(taken) > 5, "drafts were meant to be accepted"


def test_what_the_draw_used_is_reported_when_asked(llm: LLM) -> None:
    """By default log-probabilities are the model's own, a mask or not; filtered, they are the mask's."""
    constraint = Constraint(kind="regex", text="q|z")
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=1, logprobs=3)
    own = llm.generate("ab", params, constraint=constraint)
    used = llm.generate("ab", replace(params, filtered_logprobs=True), constraint=constraint)
    assert own.text == used.text
    assert own.text in "qz"
    assert own.logprobs[0].logprob < -2
    names = {llm.tokenizer.decode([t]) for t, _ in used.logprobs[0].top}
    assert names == {"q", "z"}


def test_reasoning_comes_before_the_constraint(llm: LLM) -> None:
    think, close = (llm.tokenizer.token_id(t) for t in ("<think>", "</think>"))
    assert think is not None
    assert close is not None
    tokens = [*llm.encode("ab"), think]
    params = SamplingParams(max_tokens=150, temperature=1.0, seed=1, logit_bias={close: 5.0})
    answer = llm.generate(tokens, params, constraint=REGEX)
    thought, _, said = answer.text.partition("</think>")
    assert thought
    assert holds(REGEX, said.lstrip("\n"))


def test_bad_constraints_are_refused_at_once(llm: LLM) -> None:
    bad = Constraint(kind="json_schema", text='{"type": "odd"}', param="response_format")
    with pytest.raises(RequestError, match="Invalid type: odd") as caught:
        llm.chat([{"role": "user", "content": "x"}], constraint=bad)
    assert caught.value.param == "response_format"
    with pytest.raises(RequestError, match="min_tokens"):
        llm.generate("x", SamplingParams(min_tokens=2), constraint=REGEX)
    assert llm.loaded.engine.is_idle


def test_the_command_line(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schema.json"
    path.write_text(JSON.text)
    words = ["run", str(tiny_llama), "hi", "--raw", "--quiet", "--max-ctx", "256"]
    assert main([*words, "--json-schema", str(path), "--temp", "1", "--seed", "3"]) == 0
    assert holds(JSON, capsys.readouterr().out)
    assert main([*words, "--regex", REGEX.text]) == 0
    assert holds(REGEX, capsys.readouterr().out.removesuffix("\n"))
    path.write_text(LARK.text)
    assert main([*words, "--grammar", str(path)]) == 0
    assert holds(LARK, capsys.readouterr().out.removesuffix("\n"))
    assert main([*words, "--regex", "[a"]) != 0
    assert "--regex cannot be followed" in capsys.readouterr().err


@pytest.mark.model
def test_smollm2_writes_what_is_asked(smollm2: Path) -> None:
    weather = Tool(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "days": {"enum": [1, 3, 7]},
            },
            "required": ["city", "days"],
        },
    )
    tools = Toolset([weather, Tool(name="now")])
    state = StateConfig(max_concurrency=2, max_ctx=1024)
    config = EngineConfig(state=state, spec=SpecConfig(draft="lookup"))
    with LLM(smollm2, config=config) as llm:
        call = Constraint.calls(HERMES, tools, llm.tokenizer.cut, only="get_weather", several=False)
        date = Constraint(kind="regex", text=r"[A-Z][a-z]{2,8} \d{1,2}, \d{4}")
        person = {
            "type": "object",
            "properties": {"name": {"type": "string"}, "born": {"type": "integer"}},
            "required": ["name", "born"],
            "additionalProperties": False,
        }
        record = Constraint(kind="json_schema", text=json.dumps(person))
        asked = [
            ("Give Ada Lovelace's name and year of birth as JSON.", record),
            ("When did Apollo 11 land on the Moon?", date),
            ("How is the weather in Paris for three days?", call),
        ]
        for temperature in (0.0, 0.8):
            params = SamplingParams(max_tokens=80, temperature=temperature, seed=5)
            texts = []
            for question, constraint in asked:
                tokens = llm.encode([{"role": "user", "content": question}])
                both = [
                    fold(llm.start(tokens, params, speculate=speculate, constraint=constraint))
                    for speculate in (False, True)
                ]
                assert both[0].tokens == both[1].tokens
                assert both[1].finish.reason == "stop"
                texts.append(both[1].text)
            value = json.loads(texts[0])
            assert list(value) == ["name", "born"]
            assert isinstance(value["name"], str)
            assert type(value["born"]) is int
            assert re.fullmatch(date.text, texts[1])
            (made,) = fold_events(events([texts[2]], HERMES, tools)).calls
            assert (made.name, made.complete) == ("get_weather", True)
            arguments = json.loads(made.arguments)
            assert len(arguments["city"]) <= 20
            assert arguments["days"] in (1, 3, 7)
