"""Our own chat templates, for models whose file brings none. Unlike others they print a turn's `raw`."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from pydflash.text.template import ChatTemplate

_NAMES = {
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "laguna": "laguna",
    "gemma4": "gemma4",
    "deepseek4": "deepseek4",
}
_STARTS = {
    "laguna": ("<assistant>\n",),
    # The answer to a tool's result goes on in the same turn.
    "gemma4": ("<|turn>model\n", "<tool_response|>"),
    "deepseek4": ("<｜Assistant｜>",),
}
_CHATML_STARTS = ("<|im_start|>assistant\n",)


@dataclass(frozen=True, slots=True)
class BuiltinTemplate:
    """`starts`: the texts after which the model's own text begins, in history and at the prompt's end."""

    template: ChatTemplate
    starts: tuple[str, ...]

    def raw(self, prompt: str, generated: str) -> str:
        """The turn's own text: what the prompt ended with after the last start, and what was generated."""
        start = max(at + len(text) for text in self.starts if (at := prompt.rfind(text)) >= 0)
        return prompt[start:] + generated


@cache
def builtin_template(arch: str) -> BuiltinTemplate:
    """The template of an architecture; plain ChatML where nothing better is known."""
    name = _NAMES.get(arch, "chatml")
    source = resources.files("pydflash.text").joinpath("renderers", f"{name}.jinja")
    template = ChatTemplate(source.read_text("utf-8"), bos=None, eos=None)
    return BuiltinTemplate(template, _STARTS.get(name, _CHATML_STARTS))
