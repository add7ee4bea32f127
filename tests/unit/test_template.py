"""ChatTemplate: the functions real templates call, both forms of content, and every way to fail."""

from datetime import datetime
from typing import Any

import pytest

from pydflash.errors import TemplateError
from pydflash.text.template import ChatTemplate, as_parts, flatten_text

HELLO = [{"role": "user", "content": "Hi"}]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
]
READS_PARTS = (
    "{% for m in messages %}{% for p in m.content %}"
    "<{{ p.type }}:{{ p.text }}>{% endfor %}{% endfor %}"
)
DOUBLED = "{% set n = namespace(s='x' * 99) %}{% for i in range(40) %}{% set n.s = ? %}{% endfor %}"
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LOOP_CONTROLS = (
    "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}"
    "{{ i }}{% endfor %}"
)


def render(source: str, messages: list[dict[str, Any]] = HELLO, **kwargs: Any) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages, **kwargs)


def test_smollm2_template_puts_its_system_turn_first() -> None:
    source = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nBe helpful<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert render(source) == (
        "<|im_start|>system\nBe helpful<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("{{ bos_token + 'x' + eos_token }}", "<s>x</s>"),
        ("{% if tools %}T{% endif %}{% if documents %}D{% endif %}", ""),
        ("{{ ['a', 'b'] | map('upper') | join }}", "AB"),
        ("{{ {'b': 'é<', 'a': 1} | tojson }}", '{"b": "é<", "a": 1}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, sort_keys=True) }}", '{"a": 1, "b": "\\u00e9"}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        (LOOP_CONTROLS, "02"),
        ("{% set ns = namespace(n=0) %}{% for i in [1] %}{% set ns.n = i %}{% endfor %}{{ ns.n }}", "1"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% macro f(n) %}{{ n * 2 }}{% endmacro %}{{ f(1700000000) }}", "3400000000"),
        ("{{ 'a' ~ 1 ~ none ~ missing }}", "a1None"),
        ("{{ '%03d|%s' % (7, 'x') }} {{ '{:>4}'.format(1) }} {{ 'x'.ljust(3) }}|", "007|x    1 x  |"),
        ("{{ messages[0].content.split('i')[0].strip() | length }}", "1"),
        ("  {% if true %}\nyes\n  {% endif %}\nno", "yes\nno"),
    ],
)  # fmt: skip
def test_render(source: str, want: str) -> None:
    assert render(source) == want


def test_render_passes_switches_and_tools() -> None:
    source = "{% if enable_thinking is defined and not enable_thinking %}off{% endif %}{{ tools[0].name }}"
    assert render(source, enable_thinking=False, tools=[{"name": "f"}]) == "offf"


def test_strftime_now_asks_the_clock() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}", bos=None, eos=None, now=lambda: datetime(2024, 5, 17)
    )
    assert template.render(HELLO) == "17 May 2024"


def test_content_takes_the_form_the_template_reads() -> None:
    both = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    assert (
        render("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", PARTS) == "<a\nb>"
    )
    assert render(READS_PARTS, PARTS) == "<text:a><text:b>"
    assert render(READS_PARTS, HELLO) == "<text:Hi>"
    assert render(both, HELLO) == "Hi"
    assert render(both, PARTS) == "[a][b]"


def test_flatten_text_and_as_parts() -> None:
    assert flatten_text(PARTS[0])["content"] == "a\nb"
    assert flatten_text(HELLO[0]) is HELLO[0]
    assert flatten_text({"role": "assistant", "content": None})["content"] is None
    assert as_parts(HELLO[0])["content"] == [{"type": "text", "text": "Hi"}]
    assert as_parts(PARTS[0]) is PARTS[0]
    with pytest.raises(TemplateError, match="text only, a message has a part of type 'image'"):
        flatten_text({"role": "user", "content": [{"type": "image", "url": "x"}]})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Only user turns!') }}", r"refuses: Only user turns!$"),
        ("a\n\n{% if %}", "syntax error on line 3"),
        ("{% nope %}", "syntax error on line 1: Encountered unknown tag 'nope'"),
        ("{{ x | nope }}", "syntax error on line 1: No filter named 'nope'"),
        ("a\nb {{ messages[0].content.nope() }}", "failed on line 2: 'str object' has no attribute 'nope'"),
        ("{{ missing.field }}", "failed on line 1: 'missing' is undefined"),
        ("{{ 1 + 'a' }}", "failed on line 1: unsupported operand"),
        ("{{ ''.__class__.__mro__ }}", "stopped on line 1: access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "stopped on line 1: access to attribute 'append'"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
        (NESTED, "loops count over more than 1000000"),
        ("{% for a in range(900000) %}{{ 'x' * 99 }}{% endfor %}", "writes more than 33554432 characters"),
        ("{{ 'a' * 10**9 }}", "more than 33554432 characters"),
        ("{{ 9 ** (9 ** 9) }}", "more than 33554432 characters"),
        ("{{ 'a'.center(10**9) }}", "more than 33554432 characters"),
        ("{{ '%999999999d' % 1 }}", "unreasonable width"),
        (DOUBLED.replace("?", "n.s ~ n.s"), "more than 33554432 characters"),
        (DOUBLED.replace("?", "n.s + n.s"), "more than 33554432 characters"),
        ("{{ lipsum(1) }}", "'lipsum' is undefined"),
    ],
)  # fmt: skip
def test_failures_are_template_errors(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        render(source)
    assert "\n" not in str(caught.value)
    assert caught.value.code == "template_error"


def test_one_rendering_does_not_spend_the_budget_of_the_next() -> None:
    template = ChatTemplate("{% for i in range(400000) %}{% endfor %}ok", bos=None, eos=None)
    assert [template.render(HELLO) for _ in range(3)] == ["ok"] * 3
