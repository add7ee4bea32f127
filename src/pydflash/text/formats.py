"""Formats: how a family of models marks its reasoning, and which form of tool calls is its own."""

from dataclasses import dataclass
from typing import Literal

from pydflash.text import block, openers
from pydflash.text.tools import dsml, json_call, keyed, verb, xml_function

CallForm = Literal["xml", "json", "keyed", "gemma", "dsml"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """`label` is a channel's name that follows the opener and is not part of the reasoning."""

    name: str
    calls: CallForm
    reasoning_open: str = "<think>"
    reasoning_close: str = "</think>"
    label: str = ""

    def opens_reasoning(self, prompt: str) -> bool:
        """Does the rendered prompt leave the model inside its reasoning?"""
        end = prompt.rstrip()
        return end.endswith((self.reasoning_open, self.reasoning_open + self.label.rstrip()))

    def shows(self, special: str) -> bool:
        """Is this special token part of a marker, and so to be given to the splitter as text?"""
        return bool(special) and any(special in marker for marker in (*self.markers, *_MARKERS))

    @property
    def markers(self) -> tuple[str, str]:
        return self.reasoning_open, self.reasoning_close


_MARKERS = (
    block.OPEN,
    xml_function.OPEN,
    json_call.OPEN,
    keyed.KEY,
    verb.OPEN_TAGGED,
    '<|"|>',
    *dsml.OPEN,
    *openers.STRAYS,
)

QWEN = Format(name="qwen", calls="xml")
HERMES = Format(name="hermes", calls="json")
LAGUNA = Format(name="laguna", calls="keyed")
GEMMA = Format(
    name="gemma",
    calls="gemma",
    reasoning_open="<|channel>",
    reasoning_close="<channel|>",
    label="thought\n",
)
DEEPSEEK = Format(name="deepseek", calls="dsml")

FORMATS = {form.name: form for form in (QWEN, HERMES, LAGUNA, GEMMA, DEEPSEEK)}

# What a template is sure to contain if it writes calls or reasoning in a form, most telling first.
_SIGNS: tuple[tuple[str, Format], ...] = (
    ("｜DSML｜", DEEPSEEK),
    (keyed.KEY, LAGUNA),
    (verb.OPEN_TAGGED, GEMMA),
    (GEMMA.reasoning_open, GEMMA),
    (xml_function.OPEN, QWEN),
    (block.OPEN, HERMES),
)
_ARCHITECTURES = {"deepseek4": DEEPSEEK, "laguna": LAGUNA, "gemma4": GEMMA}


def detect(template_source: str | None, arch: str) -> Format:
    """The format of a model: by what its template writes, else by its architecture, else Qwen's."""
    for sign, form in _SIGNS:
        if template_source and sign in template_source:
            return form
    return _ARCHITECTURES.get(arch, QWEN)
