"""Grammars of tool calls: what they let through the readers read as whole calls, in every family's form."""

import json
import random

import pytest

from pydflash.errors import RequestError
from pydflash.sampling.mask import bits
from pydflash.service.constraint import Constraint
from pydflash.service.guidance import Guidance
from pydflash.text.call_grammar import call_grammar
from pydflash.text.formats import DEEPSEEK, FORMATS, GEMMA, Format
from pydflash.text.stream import fold
from pydflash.text.tokenizer import Tokenizer
from pydflash.text.toolset import Tool, Toolset
from pydflash.text.vocabulary import Vocabulary
from tests.text.split import events
from tests.tiny.vocabulary import CONTROL, IM_END, tiny_vocabulary

SPECIALS = ("<|tool_call>", "<tool_call|>", '<|"|>', "｜DSML｜", "<tool_call>")
TRIP = Tool(
    name="plan_trip",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 0, "maximum": 99},
            "unit": {"enum": ["C", "F", "1"]},
            "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "maxItems": 2},
            "metric": {"type": ["boolean", "null"]},
        },
        "required": ["city", "days"],
        "$defs": {
            "stop": {
                "type": "object",
                "properties": {"at": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["at"],
                "additionalProperties": False,
            }
        },
    },
)
COUNT = Tool(
    name="count",
    parameters={
        "type": "object",
        "properties": {
            "days": {"type": "integer", "minimum": 0, "maximum": 99},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "metric": {"type": "boolean"},
            "where": {
                "type": "object",
                "properties": {"x": {"type": "boolean"}, "y": {"enum": [1, "far"]}},
                "additionalProperties": False,
            },
        },
        "required": ["unit"],
    },
)
NOW = Tool(name="now")
TOOLS = Toolset([TRIP, COUNT, NOW])
ARGUMENTS = {"city": "Rome, “x”", "days": 3, "unit": "1", "stops": [{"at": 4}], "metric": None}

CALLS = {
    "qwen": (
        "<tool_call>\n<function=plan_trip>\n<parameter=city>\nRome, “x”\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=unit>\n1\n</parameter>\n"
        '<parameter=stops>\n[{"at": 4}]\n</parameter>\n<parameter=metric>\nnull\n</parameter>\n'
        "</function>\n</tool_call>"
    ),
    "hermes": (
        '<tool_call>\n{"name": "plan_trip", "arguments": {"city": "Rome, “x”", "days": 3, "unit": "1", '
        '"stops": [{"at": 4}], "metric": null}}\n</tool_call>'
    ),
    "laguna": (
        "<tool_call>plan_trip\n<arg_key>city</arg_key>\n<arg_value>Rome, “x”</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "<arg_key>unit</arg_key>\n<arg_value>1</arg_value>\n"
        '<arg_key>stops</arg_key>\n<arg_value>[{"at": 4}]</arg_value>\n'
        "<arg_key>metric</arg_key>\n<arg_value>null</arg_value>\n</tool_call>"
    ),
    "gemma": (
        '<|tool_call>call:plan_trip{city:<|"|>Rome, “x”<|"|>,days:3,unit:<|"|>1<|"|>,stops:[{at:4}],'
        "metric:null}<tool_call|>"
    ),
    "deepseek": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="plan_trip">\n'
        '<｜DSML｜parameter name="city" string="true">Rome, “x”</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="unit" string="true">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="stops" string="false">[{"at": 4}]</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="metric" string="false">null</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The small vocabulary, with the control tokens of the families that have their tags as such."""
    made = tiny_vocabulary()
    return Tokenizer(
        Vocabulary(
            model="gpt2",
            pre="smollm",
            tokens=[*made.tokens, *SPECIALS],
            token_types=[*made.types, *[CONTROL] * len(SPECIALS)],
            scores=None,
            merges=made.merges,
            bos=None,
            eos=IM_END,
            eot=None,
            eog=(IM_END,),
            pad=None,
            unk=None,
            add_bos=None,
            add_eos=None,
            add_space_prefix=None,
        )
    )


@pytest.fixture(scope="module")
def guidance(tokenizer: Tokenizer) -> Guidance:
    return Guidance(tokenizer)


class Checked:
    """A grammar of calls, to try texts on."""

    def __init__(self, guidance: Guidance, tokenizer: Tokenizer, form: Format, **options: object):
        text = call_grammar(form.calls, TOOLS, tokenizer.cut, **options)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.grammar = guidance.compile(Constraint(kind="grammar", text=text, param="tools"))

    def accepts(self, text: str) -> bool:
        """Is the text whole as it stands?"""
        tokens = self.tokenizer.encode(text)
        mask = self.grammar.start()
        if mask.takes(tokens) < len(tokens):
            return False
        mask.commit(tokens)
        return bool(bits(mask.allowed(()) or b"", self.tokenizer.vocab_size)[IM_END])

    def walk(self, dice: random.Random) -> str:
        """A text at random; it ends as soon as it may."""
        mask, said = self.grammar.start(), []
        for _ in range(2000):
            allowed = bits(mask.allowed(()) or b"", self.tokenizer.vocab_size)
            if allowed[IM_END]:
                return self.tokenizer.decode(said)
            said.append(dice.choice(allowed.nonzero()[0].tolist()))
            mask.commit(said[-1:])
        raise AssertionError("the walk found no end")


def read(text: str, form: Format) -> list[tuple[str, object, bool]]:
    whole = fold(events([text], form, TOOLS))
    return [(call.name, json.loads(call.arguments), call.complete) for call in whole.calls]


@pytest.mark.parametrize("name", CALLS)
def test_the_own_form_is_let_through(guidance: Guidance, tokenizer: Tokenizer, name: str) -> None:
    form, text = FORMATS[name], CALLS[name]
    assert read(text, form) == [("plan_trip", ARGUMENTS, True)]
    checked = Checked(guidance, tokenizer, form)
    assert checked.accepts(text)
    assert not checked.accepts("")
    assert not checked.accepts("Sure: " + text)
    assert not checked.accepts(text.replace("plan_trip", "plan_trap"))
    assert not checked.accepts(text.replace("3", "100"))
    assert not checked.accepts(text.replace("3", "x"))
    assert not checked.accepts(text.replace("unit", "unity"))
    assert not checked.accepts(text[:-3])
    only = Checked(guidance, tokenizer, form, only="count")
    assert not only.accepts(text)


@pytest.mark.parametrize("name", CALLS)
def test_several_calls_or_one(guidance: Guidance, tokenizer: Tokenizer, name: str) -> None:
    form, text = FORMATS[name], CALLS[name]
    twice = text + ("" if form is GEMMA else "\n") + text
    if form is DEEPSEEK:
        twice = twice.replace("</｜DSML｜tool_calls>\n<｜DSML｜tool_calls>\n", "")
    assert len(read(twice, form)) == 2
    assert Checked(guidance, tokenizer, form).accepts(twice)
    assert not Checked(guidance, tokenizer, form, several=False).accepts(twice)


@pytest.mark.parametrize("name", CALLS)
def test_what_may_be_left_out(guidance: Guidance, tokenizer: Tokenizer, name: str) -> None:
    form = FORMATS[name]
    checked = Checked(guidance, tokenizer, form)
    short = {
        "qwen": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "laguna": "<tool_call>now\n</tool_call>",
        "gemma": "<|tool_call>call:now{}<tool_call|>",
        "deepseek": (
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
        ),
    }[name]
    assert checked.accepts(short)
    assert read(short, form) == [("now", {}, True)]
    assert not checked.accepts(short.replace("now", "count")), "its unit is required"


@pytest.mark.parametrize("name", CALLS)
def test_random_texts_are_whole_calls(guidance: Guidance, tokenizer: Tokenizer, name: str) -> None:
    form, dice = FORMATS[name], random.Random(7)
    checked = Checked(guidance, tokenizer, form, only="count", several=False)
    seen: set[str] = set()
    for _ in range(25):
        text = checked.walk(dice)
        ((tool, arguments, complete),) = read(text, form)
        assert (tool, complete) == ("count", True), text
        assert isinstance(arguments, dict)
        assert arguments["unit"] in ("C", "F"), text
        assert type(arguments.get("days", 0)) is int
        assert 0 <= arguments.get("days", 0) <= 99
        assert type(arguments.get("metric", True)) is bool
        where = arguments.get("where", {})
        assert where.keys() <= {"x", "y"}
        assert type(where.get("x", True)) is bool
        assert where.get("y", 1) in (1, "far")
        seen |= arguments.keys()
    assert seen == {"days", "unit", "metric", "where"}


def test_gemma_s_open_values(guidance: Guidance, tokenizer: Tokenizer) -> None:
    """Values of which the schema says little, and a schema that contains itself."""
    tree = {
        "type": "object",
        "properties": {"in": {"$ref": "#/$defs/tree"}, "a b": {"type": "string"}},
    }
    parameters = {
        "properties": {"tree": {"$ref": "#/$defs/tree"}, "any": {}},
        "$defs": {"tree": tree},
    }
    tools = Toolset([Tool(name="f", parameters=parameters)])
    text = call_grammar("gemma", tools, tokenizer.cut)
    start = guidance.compile(Constraint(kind="grammar", text=text)).start
    for value in (
        '{tree:{in:{any:[1,<|"|>x<|"|>,{}],y:null}}}',
        '{tree:{in:{},<|"|>a b<|"|>:<|"|>t<|"|>},any:true}',
        "{any:-1.5e3}",
        "{}",
    ):
        tokens = tokenizer.encode(f"<|tool_call>call:f{value}<tool_call|>")
        assert start().takes(tokens) == len(tokens), value
    assert start().takes(tokenizer.encode("<|tool_call>call:f{tree:1}")) < 30


def test_what_is_not_declared_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no tool named 'nope'") as caught:
        call_grammar("xml", TOOLS, tokenizer.cut, only="nope")
    assert caught.value.param == "tool_choice"
    with pytest.raises(RequestError, match="declares no tools"):
        call_grammar("xml", Toolset(), tokenizer.cut)


def test_a_text_is_cut_at_control_tokens(tokenizer: Tokenizer) -> None:
    quote = tokenizer.token_id('<|"|>')
    assert tokenizer.cut('a<think>b<|"|><|"|>c') == ["a<think>b", quote, quote, "c"]
    assert tokenizer.cut("") == []
