"""Built-in templates: each family's form word for word, and turns that come back byte for byte."""

import json
from typing import Any

import pytest

from pydflash.errors import TemplateError
from pydflash.text.builtin import builtin_template
from pydflash.text.formats import detect
from pydflash.text.history import PastCall, Turn, messages
from pydflash.text.memory import Remembered, ToolMemory
from pydflash.text.stream import fold
from pydflash.text.toolset import Toolset
from tests.text.split import WEATHER, events

ARCHES = ["qwen35", "llama", "laguna", "gemma4", "deepseek4"]
TOOLS = Toolset([WEATHER])
TOOL_JSON = '{"type": "function", "function": {"name": "get_weather", "description": '
CALL = PastCall(id="1", name="get_weather", arguments={"city": "Rome", "days": 3})
TALK = [
    Turn(role="system", content="Be brief."),
    Turn(role="user", content="Weather?"),
    Turn(role="assistant", content="Let me look.", reasoning="hm", calls=(CALL,)),
    Turn(role="tool", call_id="1", content="sunny"),
    Turn(role="tool", call_id="2", content="warm"),
]
# Without tools and thinking; with the model's answer to a first message.
SHORT = [
    Turn(role="user", content="Hi"),
    Turn(role="assistant", content="Hello!"),
    Turn(role="user", content=[{"type": "text", "text": "Bye"}]),
]


def render(arch: str, turns: list[Turn], *, tools: Toolset | None = None, **options: Any) -> str:
    return builtin_template(arch).template.render(
        messages(turns), tools=tools.for_template() if tools else None, **options
    )


def test_qwen35() -> None:
    assert render("qwen35", SHORT, enable_thinking=False) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    text = render("qwen35", TALK, tools=TOOLS, enable_thinking=True)
    head, _, rest = text.partition("</IMPORTANT>")
    assert head.startswith(
        "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n"
        + TOOL_JSON
    )
    assert (
        "}\n</tools>\n\nIf you choose to call a function ONLY reply in the following format" in head
    )
    assert rest == (
        "\n\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nLet me look.\n\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
        "<tool_response>\nwarm\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_qwen35_forgets_thoughts_before_the_last_question() -> None:
    text = render("qwen35", [*TALK, Turn(role="user", content="And?")])
    assert "<|im_start|>assistant\nLet me look.\n\n<tool_call>" in text
    assert "hm" not in text


def test_chatml() -> None:
    assert render("llama", SHORT) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    text = render("llama", TALK, tools=TOOLS)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert text.endswith(
        '<|im_start|>assistant\nLet me look.\n<tool_call>\n{"name": "get_weather", '
        '"arguments": {"city": "Rome", "days": 3}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
        "<tool_response>\nwarm\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_laguna() -> None:
    text = render("laguna", SHORT)
    assert text.startswith(
        "〈|EOS|〉<system>\nYou are a helpful, conversationally-fluent assistant"
    )
    assert text.endswith(
        "\n</system>\n<user>\nHi\n</user>\n<assistant>\n</think>\nHello!\n</assistant>\n"
        "<user>\nBye\n</user>\n<assistant>\n</think>"
    )
    text = render("laguna", TALK, tools=TOOLS, enable_thinking=True)
    assert text.startswith("〈|EOS|〉<system>\nBe brief.\n\n### Tools\n")
    assert f"<available_tools>\n{TOOL_JSON}" in text
    assert "<think>" in text[: text.index("</system>")]
    assert text.endswith(
        "\n</system>\n<user>\nWeather?\n</user>\n"
        "<assistant>\n<think>\nhm\n</think>\nLet me look.\n<tool_call>get_weather\n"
        "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n</assistant>\n"
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>\n"
        "<assistant>\n<think>"
    )


def test_gemma4() -> None:
    assert render("gemma4", SHORT) == (
        "<bos><|turn>user\nHi<turn|>\n<|turn>model\nHello!<turn|>\n<|turn>user\nBye<turn|>\n"
        "<|turn>model\n<|channel>thought\n<channel|>"
    )
    text = render("gemma4", [*TALK[:-1]], tools=TOOLS, enable_thinking=True)
    assert text.startswith(
        "<bos><|turn>system\n<|think|>\nBe brief.<|tool>declaration:get_weather"
        '{description:<|"|>The weather in a city.<|"|>,parameters:{properties:{'
        'city:{type:<|"|>STRING<|"|>},days:{type:<|"|>INTEGER<|"|>},hours:{type:[<|"|>array<|"|>,'
        '<|"|>null<|"|>]},metric:{type:<|"|>BOOLEAN<|"|>},share:{type:<|"|>NUMBER<|"|>},'
        'unit:{enum:[<|"|>C<|"|>,<|"|>F<|"|>,<|"|>1<|"|>]},where:{type:<|"|>OBJECT<|"|>}},'
        'required:[<|"|>city<|"|>],type:<|"|>OBJECT<|"|>}}<tool|><turn|>\n'
    )
    assert text.endswith(
        "<|turn>user\nWeather?<turn|>\n<|turn>model\nLet me look."
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
        '<|tool_response>response:get_weather{value:<|"|>sunny<|"|>}<tool_response|>'
    )
    closed = render("gemma4", TALK, add_generation_prompt=False)
    assert closed.endswith("<tool_response|><turn|>\n")


def test_deepseek4() -> None:
    assert render("deepseek4", SHORT) == (
        "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Hello!<｜end▁of▁sentence｜>"
        "<｜User｜>Bye<｜Assistant｜></think>"
    )
    text = render("deepseek4", TALK, tools=TOOLS, enable_thinking=True)
    assert text.startswith(f"<｜begin▁of▁sentence｜>## Tools\n\n{TOOL_JSON}")
    assert text.endswith(
        "\n\nBe brief.<｜User｜>Weather?<｜Assistant｜><think>hm</think>Let me look.\n\n"
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
        "<｜User｜><tool_result>sunny</tool_result><tool_result>warm</tool_result>"
        "<｜Assistant｜><think>"
    )


@pytest.mark.parametrize("arch", ARCHES)
def test_a_rendered_call_is_read_again(arch: str) -> None:
    arguments = {
        "city": 'a "b"\n<c> \\ é',
        "days": -3,
        "share": 0.5,
        "metric": True,
        "where": {"x": [1, None, {"y": "z"}]},
        "hours": [1, 2],
    }
    call = PastCall(id="1", name="get_weather", arguments=arguments)
    turns = [Turn(role="user", content="?"), Turn(role="assistant", content="Well.", calls=(call,))]
    text = render(arch, turns, add_generation_prompt=False)
    start = text.index("Well.")
    form = detect(builtin_template(arch).template.source, arch)
    found = fold(events([text[start:]], form, TOOLS))
    assert found.calls[0].complete
    assert events(list(text[start:]), form, TOOLS) == events([text[start:]], form, TOOLS)
    assert json.loads(found.calls[0].arguments) == arguments


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("arch", ARCHES)
def test_a_remembered_turn_comes_back_byte_for_byte(arch: str, thinking: bool) -> None:
    builtin = builtin_template(arch)
    turns = [Turn(role="user", content="one")]
    memory = ToolMemory()
    for step in range(3):
        prompt = builtin.template.render(
            messages(turns, memory=memory, replay=True), enable_thinking=thinking
        )
        generated = f"  odd \n spaces{step}</think>\n\n\n<whatever> "
        memory.remember((str(step),), Remembered(builtin.raw(prompt, generated)))
        call = PastCall(id=str(step), name="get_weather")
        turns += [
            Turn(role="assistant", content="x", calls=(call,)),
            Turn(role="tool", call_id=str(step), content="r"),
        ]
        after = builtin.template.render(
            messages(turns, memory=memory, replay=True), enable_thinking=thinking
        )
        assert after.startswith(prompt + generated)


@pytest.mark.parametrize("arch", ARCHES)
def test_pictures_are_refused(arch: str) -> None:
    turns = [Turn(role="user", content=[{"type": "image_url", "image_url": {}}])]
    with pytest.raises(TemplateError, match="reads text only"):
        render(arch, turns)


def test_a_prompt_opens_reasoning_as_its_format_says() -> None:
    for arch in ("qwen35", "laguna", "deepseek4"):
        form = detect(None, arch)
        assert form.opens_reasoning(render(arch, SHORT, enable_thinking=True))
        assert not form.opens_reasoning(render(arch, SHORT, enable_thinking=False))
