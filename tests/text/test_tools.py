"""Golden transcripts of every family of tool calls, each cut at every character."""

import json

import pytest

from pydflash.text.channels import ChannelSplitter
from pydflash.text.formats import DEEPSEEK, GEMMA, LAGUNA, QWEN, Format
from pydflash.text.stream import Folded, ToolCallArguments, ToolCallStart, fold
from pydflash.text.toolset import Tool, Toolset
from tests.text.split import NOW, TOOLS, WEATHER, everywhere

Calls = list[tuple[str, dict[str, object]]]


def folded(text: str, form: Format = QWEN, tools: Toolset | None = TOOLS) -> Folded:
    return fold(everywhere(text, form, tools=tools))


def calls(whole: Folded) -> Calls:
    return [(call.name, json.loads(call.arguments)) for call in whole.calls]


ROME: Calls = [("get_weather", {"city": "Rome"})]
ROME_3: Calls = [("get_weather", {"city": "Rome", "days": 3})]
XML_BODY = (
    "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>"
)
JSON_BODY = '{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}'
KEYED = "get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
DSML = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)

GOLDEN: dict[str, tuple[Format, str, Calls]] = {
    "xml in a block": (QWEN, f"<tool_call>\n{XML_BODY}\n</tool_call>", ROME_3),
    "xml without a block": (QWEN, XML_BODY, ROME_3),
    "xml without block end": (QWEN, f"<tool_call>\n{XML_BODY}", ROME_3),
    "xml without function end": (
        QWEN,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</tool_call>",
        ROME,
    ),
    "xml without parameter ends": (
        QWEN,
        "<tool_call><function=get_weather><parameter=city>\nRome\n<parameter=days>3</function></tool_call>",
        ROME_3,
    ),
    "xml ended by the block's end inside a value": (
        QWEN,
        "<tool_call><function=get_weather><parameter=city>Rome</tool_call>",
        ROME,
    ),
    "xml, text ends after a parameter": (
        QWEN,
        "<tool_call><function=get_weather><parameter=city>Rome</parameter>\n",
        ROME,
    ),
    "xml, no parameters": (
        QWEN,
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [("now", {})],
    ),
    "xml, two functions in one block": (
        QWEN,
        f"<tool_call>\n{XML_BODY}\n<function=now></function></tool_call>",
        [*ROME_3, ("now", {})],
    ),
    "xml, name without its bracket": (
        QWEN,
        "<tool_call><function=get_weather\n<parameter=city>Rome</parameter></function></tool_call>",
        ROME,
    ),
    "function with a JSON body": (QWEN, '<function=get_weather>{"city": "Rome"}</function>', ROME),
    "function in Python's form": (
        QWEN,
        '<tool_call><function=get_weather(city="Rome", days=3)></function></tool_call>',
        ROME_3,
    ),
    "function in Python's form, closers inside": (
        QWEN,
        "<function=get_weather(city='a)>b</function>', where={'x': [True, None]})>\n</function>",
        [("get_weather", {"city": "a)>b</function>", "where": {"x": [True, None]}})],
    ),
    "function in Python's form without closers": (
        QWEN,
        '<function=get_weather(city="Rome")>',
        ROME,
    ),
    "bare tool name": (
        QWEN,
        "<get_weather><parameter=city>Rome</parameter></get_weather>",
        ROME,
    ),
    "bare tool name with a function's closer": (
        QWEN,
        "<get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>",
        ROME,
    ),
    "bare tool name in a block": (
        QWEN,
        "<tool_call><get_weather><parameter=city>Rome</parameter></get_weather></tool_call>",
        ROME,
    ),
    "JSON in a block": (QWEN, f"<tool_call>\n{JSON_BODY}\n</tool_call>", ROME_3),
    "JSON without block end": (QWEN, f"<tool_call>\n{JSON_BODY}", ROME_3),
    "JSON, several blocks": (
        QWEN,
        f"<tool_call>\n{JSON_BODY}\n</tool_call>\n"
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        [*ROME_3, ("now", {})],
    ),
    "JSON, a list in one block": (
        QWEN,
        f'<tool_call>[{JSON_BODY}, {{"name": "now"}}]</tool_call>',
        [*ROME_3, ("now", {})],
    ),
    "JSON, arguments first": (
        QWEN,
        '<tool_call>{"arguments": {"city": "Rome"}, "name": "get_weather"}</tool_call>',
        ROME,
    ),
    "JSON, arguments as a string": (
        QWEN,
        r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}</tool_call>',
        ROME,
    ),
    "JSON, nested function": (
        QWEN,
        '<tool_call>{"type": "function", "function": '
        '{"name": "get_weather", "arguments": {"city": "Rome"}}, "id": 7}</tool_call>',
        ROME,
    ),
    "JSON, parameters": (
        QWEN,
        '<tool_call>{"name": "get_weather", "parameters": {"city": "Rome"}}</tool_call>',
        ROME,
    ),
    "JSON, null arguments": (
        QWEN,
        '<tool_call>{"name":"now","arguments":null}</tool_call>',
        [("now", {})],
    ),
    "JSON, closers and newlines inside strings": (
        QWEN,
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a</tool_call>\n}\\"{"}}</tool_call>',
        [("get_weather", {"city": 'a</tool_call>\n}"{'})],
    ),
    "name and JSON in a block": (
        QWEN,
        '<tool_call>get_weather\n{"city": "Rome"}</tool_call>',
        ROME,
    ),
    "tool_code": (QWEN, f"<tool_code>{JSON_BODY}</tool_code>", ROME_3),
    "bare JSON": (QWEN, JSON_BODY, ROME_3),
    "bare JSON twice": (
        QWEN,
        f'\n{JSON_BODY}\n{{"name": "now", "parameters": {{}}}}',
        [*ROME_3, ("now", {})],
    ),
    "bare JSON, nested function": (
        QWEN,
        '{"function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}}',
        ROME,
    ),
    "keyed": (LAGUNA, f"<tool_call>{KEYED}</tool_call>", ROME),
    "keyed on one line": (
        LAGUNA,
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
        ROME_3,
    ),
    "keyed without arguments": (LAGUNA, "<tool_call>now</tool_call>", [("now", {})]),
    "keyed without block end": (LAGUNA, f"<tool_call>{KEYED}", ROME),
    "keyed without a block": (
        LAGUNA,
        "get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>\n"
        "get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>",
        ROME * 2,
    ),
    "Gemma": (
        GEMMA,
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
        ROME_3,
    ),
    "Gemma, nested": (
        GEMMA,
        '<|tool_call>call:get_weather{city:<|"|>a}"\\<|"|>,where:{x:[1,-2.5e1,true,null],y:{}}}<tool_call|>',
        [("get_weather", {"city": 'a}"\\', "where": {"x": [1, -25.0, True, None], "y": {}}})],
    ),
    "Gemma, several": (
        GEMMA,
        "<|tool_call>call:now{}<tool_call|><|tool_call>call:ns:now{}<tool_call|>",
        [("now", {}), ("now", {})],
    ),
    "DSML": (DEEPSEEK, f"\n\n{DSML}", ROME_3),
    "DSML of before": (DEEPSEEK, DSML.replace("tool_calls", "function_calls"), ROME_3),
    "DSML without closers": (DEEPSEEK, DSML[: DSML.index("\n</｜DSML｜invoke>")], ROME_3),
    "DSML, two calls": (
        DEEPSEEK,
        DSML.replace(
            "</｜DSML｜tool_calls>",
            '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        ),
        [*ROME_3, ("now", {})],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_transcript(name: str) -> None:
    form, text, want = GOLDEN[name]
    whole = folded(text, form)
    assert calls(whole) == want
    assert whole.content == ""
    assert whole.dropped == []
    assert all(call.complete for call in whole.calls)


@pytest.mark.parametrize("name", [name for name in GOLDEN if not name.startswith("bare JSON")])
def test_prose_around_a_call(name: str) -> None:
    form, text, want = GOLDEN[name]
    closed = text.rstrip().endswith(("</tool_call>", "</function>", "<tool_call|>", "calls>"))
    whole = folded(f"Let me look.\n\n{text}\n" + ("Done." if closed else ""), form)
    assert calls(whole) == want
    assert whole.content == "Let me look." + ("Done." if closed else "")


@pytest.mark.parametrize("name", GOLDEN)
def test_without_tools_nothing_is_a_call(name: str) -> None:
    form, text, _ = GOLDEN[name]
    whole = folded(text, form, None)
    assert whole.calls == []
    assert whole.content.strip() == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=gone>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        '<tool_call>{"name": "gone", "arguments": {"city": "x"}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": "[1"}</tool_call>',
        '<tool_call>{"name" "get_weather"}</tool_call>',
        "<tool_call>I think I should call something</tool_call>",
        "<tool_call>gone<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
        "<function=gone>{}</function>",
        "<function=get_weather(1, 2)></function>",
        "<function=get_weather(city=open('x'))></function>",
        "<tool_code>print(1)</tool_code>",
        "<|tool_call>call:gone{}<tool_call|>",
        "<|tool_call>call:now<tool_call|>",
        "<|tool_call>call:get_weather{city:Rome}<tool_call|>",
        DSML.replace("get_weather", "gone"),
        DSML.replace('name="get_weather"', ""),
    ],
)
def test_a_failed_call_is_dropped_and_counted(text: str) -> None:
    whole = folded(f"Before. {text} After.")
    assert whole.calls == []
    assert whole.content == "Before.After."
    assert [drop.text for drop in whole.dropped] == [text]
    assert whole.dropped[0].reason


@pytest.mark.parametrize(
    "text", ["<tool_call>", "<tool_call>\n<function=get_wea", "<tool_call>{", "<function=x"]
)
def test_a_call_cut_before_its_name_never_shows(text: str) -> None:
    whole = folded(f"Hm. {text}")
    assert (whole.content, whole.calls) == ("Hm.", [])


@pytest.mark.parametrize(
    ("form", "text", "arguments"),
    [
        (QWEN, "<tool_call><function=get_weather><parameter=city>\nRo", '{"city": "Ro"'),
        (QWEN, "<tool_call><function=get_weather><parameter=days>\n1", '{"days": 1'),
        (QWEN, "<tool_call><function=get_weather><parameter=days>1</parameter>", '{"days": 1'),
        (QWEN, "<tool_call><function=get_weather><parameter=ci", "{}"),
        (QWEN, '<tool_call>{"name": "get_weather", "arguments": {"city": "R', '{"city": "R'),
        (QWEN, '<tool_call>{"name": "get_weather", "arguments": {"city": "R"]}', '{"city": "R"]'),
        (LAGUNA, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro", '{"city": "Ro"'),
        (LAGUNA, "<tool_call>get_weather<arg_key>ci", "{}"),
        (DEEPSEEK, DSML[: DSML.index("me</｜DSML｜par")], '{"city": "Ro"'),
    ],
)
def test_a_call_cut_short_says_so(form: Format, text: str, arguments: str) -> None:
    (call,) = folded(text, form).calls
    assert (call.arguments, call.complete) == (arguments, False)


VALUES = [
    ("city", "Rome", "Rome"),
    ("city", "\nRome\n", "Rome"),
    ("city", "\n\n a\n\n", "\n a\n"),
    ("city", '"q" \\ \t é 😀', '"q" \\ \t é 😀'),
    ("city", "3", "3"),
    ("city", "", ""),
    ("city", "\n", ""),
    ("city", "null", None),
    ("city", "\nnull\n", None),
    ("city", "nullable", "nullable"),
    ("city", "nu", "nu"),
    ("city", "if a < b:\n  </div>", "if a < b:\n  </div>"),
    ("unknown", "3", "3"),
    ("unit", "1", "1"),
    ("days", "3", 3),
    ("days", " 3 ", 3),
    ("days", "3.0", 3),
    ("days", "three", "three"),
    ("days", "null", None),
    ("days", "NaN", "NaN"),
    ("days", "true", "true"),
    ("share", "1e-1", 0.1),
    ("metric", "True", True),
    ("metric", "false", False),
    ("metric", "maybe", "maybe"),
    ("where", '\n{"a": [1, "é"]}\n', {"a": [1, "é"]}),
    ("where", "{'a': True}", {"a": True}),
    ("where", "{oops", "{oops"),
    ("where", "{'a': 1} b", "{'a': 1} b"),
    ("where", '{"a": 1e999}', '{"a": 1e999}'),
    ("where", r"{'a': '\d\\'}", {"a": r"\d" + "\\"}),
    ("share", "1e999", "1e999"),
    ("where", "[1]", "[1]"),
    ("hours", "[1, 2]", [1, 2]),
]


@pytest.mark.parametrize(("key", "text", "want"), VALUES)
def test_values_are_typed_by_the_schema(key: str, text: str, want: object) -> None:
    xml = f"<tool_call><function=get_weather><parameter={key}>{text}</parameter></function></tool_call>"
    assert calls(folded(xml)) == [("get_weather", {key: want})]
    pair = f"<arg_key>{key}</arg_key><arg_value>{text}</arg_value>"
    assert calls(folded(f"<tool_call>get_weather{pair}</tool_call>", LAGUNA)) == [
        ("get_weather", {key: want})
    ]


def test_the_first_of_a_repeated_parameter_counts() -> None:
    body = "<parameter=city>a</parameter><parameter=city>b</parameter><parameter=days>1</parameter>"
    whole = folded(f"<function=get_weather>{body}<parameter=days>2</parameter></function>")
    assert whole.calls[0].arguments == '{"city": "a", "days": 1}'


def test_dsml_strings_are_verbatim_and_the_rest_json() -> None:
    text = (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="get_weather">'
        '<｜DSML｜parameter name="city" string="true">\nnull\n</｜DSML｜parameter>'
        '<｜DSML｜parameter name="where" string="false">{"a": null}</｜DSML｜parameter>'
        '<｜DSML｜parameter name="unit" string="false">"C"</｜DSML｜parameter>'
        '<｜DSML｜parameter name="days" string="false">null</｜DSML｜parameter>'
        '<｜DSML｜parameter name="metric" string="false">True</｜DSML｜parameter>'
        "</｜DSML｜invoke></｜DSML｜tool_calls>"
    )
    assert calls(folded(text, DEEPSEEK)) == [
        (
            "get_weather",
            {"city": "\nnull\n", "where": {"a": None}, "unit": "C", "days": None, "metric": True},
        )
    ]


SINGLE = Toolset([WEATHER])


@pytest.mark.parametrize(
    ("text", "tools", "want"),
    [
        ('{"city": "Rome", "days": 3}', SINGLE, ROME_3),
        (' \n{"city": "Rome"}\n', SINGLE, ROME),
        ("{}", Toolset([NOW]), [("now", {})]),
        ('{"days": 3}', SINGLE, []),  # a required one is missing
        ('{"city": "Rome", "color": 1}', SINGLE, []),
        ('{"city": "Rome"} is my answer', SINGLE, []),
        ('Here: {"city": "Rome"}', SINGLE, []),
        ('{"city": "Rome"}', TOOLS, []),  # which of them?
        ('{"city": "Ro', SINGLE, []),
        ("{not json}", SINGLE, []),
        ('{"name": "Bob", "arguments": {}}', TOOLS, []),
        ('{"name": "now"}', TOOLS, []),
    ],
)
def test_bare_json(text: str, tools: Toolset, want: Calls) -> None:
    whole = folded(text, tools=tools)
    assert calls(whole) == want
    assert whole.content == ("" if want else text)


CALL_NOW: Calls = [("now", {})]


@pytest.mark.parametrize(
    ("text", "want", "content"),
    [
        ("call:now{}", CALL_NOW, ""),
        ("call:now {}", CALL_NOW, ""),
        ("_call:now{}", CALL_NOW, "_"),
        ("call:default_api:now{}", CALL_NOW, ""),
        ('call:get_weather{"city": "Rome", "days": 3}', ROME_3, ""),
        ("call:get_weather{city: 'Rome', days: 3,}", ROME_3, ""),
        ("call:get_weather{city: `Rome`}", ROME, ""),
        ("call:get_weather{city: 'say \"hi\"'}", [("get_weather", {"city": 'say "hi"'})], ""),
        ('call:get_weather{city: "a}b{"}', [("get_weather", {"city": "a}b{"})], ""),
        (
            'call:get_weather{\n  where: {"x": {y: [1,]}}\n}',
            [("get_weather", {"where": {"x": {"y": [1]}}})],
            "",
        ),
        (
            'call:get_weather{"name": "now", "arguments": {}}',
            [("get_weather", {"name": "now", "arguments": {}})],
            "",
        ),
        ("call:now{}call:now{}", CALL_NOW * 2, ""),
        ("call:read_file-v2{path: 'x'}", [("read_file-v2", {"path": "x"})], ""),
        (
            r"call:get_weather{city: 'it\'s \u00e9\ud83d\ude00\n'}",
            [("get_weather", {"city": "it's é😀\n"})],
            "",
        ),
        ("I do (call:now{}) now.", CALL_NOW, "I do () now."),
        ("recall:now{}", [], "recall:now{}"),
        ("call:now", [], "call:now"),
        ("I call:now later", [], "I call:now later"),
        ("call:gone{}", [], "call:gone{}"),
        ("call:get_weather{city: Rome}", [], "call:get_weather{city: Rome}"),
        ("call:get_weather{city 'Rome'}", [], "call:get_weather{city 'Rome'}"),
        ("call:get_weather{city: 'Rome'", [], "call:get_weather{city: 'Rome'"),
        ("call:get_weather{city: '\\ux'}", [], "call:get_weather{city: '\\ux'}"),
        ("call:now{a:" + "[" * 99, [], "call:now{a:" + "[" * 99),
    ],
)
def test_call_verb(text: str, want: Calls, content: str) -> None:
    whole = folded(text, GEMMA)
    assert calls(whole) == want
    assert whole.content == content


def test_html_that_is_named_like_a_tool_is_text() -> None:
    tools = Toolset([Tool(name="b")])
    assert folded("<b>bold</b>", tools=tools).content == "<b>bold</b>"


def test_arguments_flow_while_they_are_written() -> None:

    splitter = ChannelSplitter(QWEN, tools=TOOLS)
    assert splitter.push("<tool_call>\n<function=get_weather>") == [ToolCallStart(0, "get_weather")]
    assert splitter.push("\n<parameter=city>\nRome, ") == [ToolCallArguments(0, '{"city": "Rome, ')]
    assert splitter.push("Italy\n") == [ToolCallArguments(0, "Italy")]
    assert splitter.push("</para") == []
    assert splitter.push("meter>") == [ToolCallArguments(0, '"')]

    splitter = ChannelSplitter(QWEN, tools=TOOLS)
    splitter.push('<tool_call>{"name": "get_weather", "arguments"')
    assert splitter.push(': {"city": "Ro') == [
        ToolCallStart(0, "get_weather"),
        ToolCallArguments(0, '{"city": "Ro'),
    ]
