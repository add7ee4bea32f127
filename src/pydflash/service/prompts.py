"""Prompts: a chat request to token ids, by the model's template and tokenizer. No tensors.

Threads may share it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydflash.config import ServerConfig
from pydflash.errors import ConfigError, RequestError
from pydflash.service.chat import ChatRequest
from pydflash.service.constraint import Constraint
from pydflash.service.landmarks import Messages, landmarks
from pydflash.text.budget import Markers, RunGuard, ThinkingBudget
from pydflash.text.builtin import builtin_template
from pydflash.text.cards import EFFORTS, ModelCard
from pydflash.text.formats import Format, detect
from pydflash.text.history import messages
from pydflash.text.memory import Remembered, ToolMemory
from pydflash.text.template import ChatTemplate
from pydflash.text.thinking import Thinking, decide, is_enabled
from pydflash.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request as the engine is to see it. `form` is None for text continued as it stands."""

    text: str
    tokens: tuple[int, ...]
    thinking: Thinking
    form: Format | None = None
    starts_in_reasoning: bool = False


class Prompts:
    """Makes prompts, and remembers what the model wrote when it called tools."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, *, arch: str, card: ModelCard
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.card = card
        self.memory = ToolMemory()
        self.form = detect(template.source, arch)
        ours = builtin_template(arch)
        self._builtin = ours if template is ours.template else None

    def render(self, request: ChatRequest) -> str:
        """The prompt's text. Raises TemplateError, and RequestError for a prompt of ids that are none."""
        if isinstance(request.prompt, str):
            return request.prompt
        if request.prompt is not None:
            return self.tokenizer.decode(list(request.prompt))
        if not request.turns:
            raise RequestError("messages is empty; give at least one", param="messages")
        return self._rendered(request, self._said(request), add_generation_prompt=True)

    def prepare(self, request: ChatRequest, room: int, default: int) -> Prompt:
        """The prompt, and how long thought and answer may be.

        `room`: positions of the context; `default`: tokens of an answer when the request does not say.
        """
        text = self.render(request)
        if isinstance(request.prompt, tuple):
            tokens = list(request.prompt)
        elif request.prompt is not None:
            tokens = self.tokenizer.encode(text, add_special=True)
        else:
            tokens = encode_rendered(self.tokenizer, text)
        most = min(request.params.max_tokens or default, max(room - len(tokens), 1))
        thinking = decide(request.thinking, self.card, most)
        raw = request.prompt is not None
        return Prompt(
            text=text,
            tokens=tuple(tokens),
            thinking=thinking,
            form=None if raw else self.form,
            starts_in_reasoning=not raw and self.form.opens_reasoning(text),
        )

    def budget(self, prompt: Prompt, runs: RunGuard | None = None) -> ThinkingBudget | None:
        """What closes the thought of an answer to this prompt; None if it does not think."""
        thinking = prompt.thinking
        if prompt.form is None or not thinking.enabled:
            return None
        form, encode = prompt.form, self.tokenizer.encode
        markers = Markers(
            opener=tuple(encode(form.reasoning_open)),
            closer=tuple(encode(form.reasoning_close)),
            force=tuple(encode(self.card.terminator_hint + form.reasoning_close + "\n\n")),
        )
        return ThinkingBudget(
            markers,
            starts_open=prompt.starts_in_reasoning,
            ceiling=thinking.ceiling,
            reserve=thinking.reserve,
            max_output=thinking.max_output,
            runs=runs,
        )

    def constraint(self, request: ChatRequest, prompt: Prompt) -> Constraint | None:
        """What the answer must be: what was asked for, or calls where `tool_choice` demands them.

        It holds from the end of the thought on, where there is one. Raises RequestError.
        """
        choice, form = request.tool_choice, prompt.form
        after = form.reasoning_close if form is not None and prompt.starts_in_reasoning else ""
        if form is None or choice.mode not in ("required", "named"):
            given = request.constraint
            return replace(given, after=after) if given is not None and after else given
        if request.constraint is not None:
            raise RequestError(
                f"tool_choice {choice.mode} and {request.constraint.param or 'a grammar'} exclude each "
                "other: an answer is a call or the text asked for",
                param="tool_choice",
            )
        return Constraint.calls(
            form,
            request.tools,
            self.tokenizer.cut,
            only=choice.name if choice.mode == "named" else None,
            several=choice.parallel,
            after=after,
        )

    def landmarks(self, request: ChatRequest, prompt: Prompt, least: int) -> Iterator[int]:
        """Lengths of the prompt that later requests may come back to, the likeliest first; see
        `landmarks`. None of a text that is continued as it stands."""
        if request.prompt is not None:
            return iter(())
        said = self._said(request)

        def encode(some: Messages) -> list[int]:
            text = self._rendered(request, some, add_generation_prompt=False)
            return encode_rendered(self.tokenizer, text)

        return landmarks(said, prompt.tokens, encode, least=least)

    def remember(self, prompt: Prompt, ids: Sequence[str], text: str, reasoning: str) -> None:
        """Keep the turn that made these calls, for the requests that will bring it back."""
        raw = self._builtin.raw(prompt.text, text) if self._builtin is not None else text
        self.memory.remember(ids, Remembered(raw, reasoning))

    def _said(self, request: ChatRequest) -> Messages:
        return messages(
            request.turns,
            memory=self.memory,
            replay=self._builtin is not None,
            template_source=self.template.source,
        )

    def _rendered(
        self, request: ChatRequest, said: Messages, *, add_generation_prompt: bool
    ) -> str:
        tools = request.tools.for_template() if request.tool_choice.mode != "none" else None
        return self.template.render(
            said,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            **{"enable_thinking": is_enabled(request.thinking), **request.template},
        )


def encode_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a template's output, which may write the beginning of text itself."""
    tokens = tokenizer.encode(text, add_special=True)
    return tokens[1:] if tokens[:2] == [tokenizer.bos, tokenizer.bos] else tokens


def configured_card(card: ModelCard, config: ServerConfig) -> ModelCard:
    """The card with what the options say otherwise (0: nothing)."""
    tiers = dict(card.tiers)
    for effort in EFFORTS:
        given = getattr(config, "reasoning_effort_" + effort.replace("-", "_"))
        tiers[effort] = given or tiers[effort]
    return replace(
        card,
        think_max=config.think_max_tokens or card.think_max,
        reply_budget=config.hard_limit_reply_budget or card.reply_budget,
        tiers=tiers,
    )


def template_from(path: str, tokenizer: Tokenizer) -> ChatTemplate:
    """A template of the user's. Raises ConfigError for a file that cannot be read."""
    try:
        source = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template-file {path} cannot be read: {error}") from error

    def text(token: int | None) -> str | None:
        return None if token is None else tokenizer.token_bytes(token).decode("utf-8", "replace")

    return ChatTemplate(source, bos=text(tokenizer.bos), eos=text(tokenizer.eos))
