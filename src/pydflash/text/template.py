"""Chat templates: messages and tools to the prompt string the model was trained on.

Invariant: every failure, of the template or of the conversation, is a TemplateError of one sentence.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError

from pydflash.errors import TemplateError
from pydflash.text.sandbox import MAX_CHARS, RefusedError, TemplateEnvironment, budgeted_range

Message = Mapping[str, Any]

_PROBE = "PROBE-7F3A"
_ENVIRONMENT = TemplateEnvironment()


class ChatTemplate:
    """One compiled chat template. Immutable; threads may share it."""

    def __init__(
        self,
        source: str,
        *,
        bos: str | None,
        eos: str | None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`bos`, `eos`: the tokens' text, "" when None. Raises TemplateError on a syntax error."""
        self.source = source
        self._constants = {"bos_token": bos or "", "eos_token": eos or ""}
        self._now = now
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template has a syntax error on line {error.lineno}: "
                f"{error.message}; give another template",
                param=None,
            ) from error
        except (RecursionError, MemoryError) as error:
            raise TemplateError(
                "the model's chat template is nested too deeply; give another template", param=None
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt. `kwargs` are the template's own switches (`enable_thinking=False`).

        A message's content is a string or a list of parts; it is given to the template in the form
        the template reads. Raises TemplateError.
        """
        if self.reads_parts and not self.reads_strings:
            messages = [as_parts(message) for message in messages]
        elif not self.reads_parts:
            messages = [flatten_text(message) for message in messages]
        return self._render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **kwargs
        )

    @cached_property
    def reads_strings(self) -> bool:
        """Does the template print a message whose content is a string?"""
        return self._prints(_PROBE)

    @cached_property
    def reads_parts(self) -> bool:
        """Does the template print a message whose content is a list of text parts?"""
        return self._prints([{"type": "text", "text": _PROBE}])

    def _prints(self, content: object) -> bool:
        try:
            text = self._render(
                [{"role": "user", "content": content}], tools=None, add_generation_prompt=False
            )
        except TemplateError:
            return False
        return _PROBE in text and "'text':" not in text and '"text":' not in text

    def _render(self, messages: Sequence[Message], **variables: Any) -> str:
        names: dict[str, Any] = {
            "documents": None,
            **self._constants,
            "strftime_now": lambda form: self._now().strftime(form),
            "range": budgeted_range(),
            **variables,
            "messages": messages,
        }
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(names):
                size += len(piece)
                if size > MAX_CHARS:
                    raise SecurityError(f"it writes more than {MAX_CHARS} characters")
                pieces.append(piece)
        except RefusedError as error:
            raise TemplateError(f"the model's chat template refuses: {error}") from error
        except SecurityError as error:
            raise TemplateError(
                f"the model's chat template was stopped{_line(error)}: {error}", param=None
            ) from error
        except Exception as error:  # template code may raise anything
            reason = str(error) or type(error).__name__
            raise TemplateError(
                f"the model's chat template failed{_line(error)}: {reason}; "
                "check the messages or give another template"
            ) from error
        return "".join(pieces)


def flatten_text(message: Message) -> Message:
    """The message with a list of text parts joined by newlines into one string.

    Raises TemplateError when a part is not text.
    """
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise TemplateError(
                f"the model's chat template takes text only, a message has a part of type {kind!r}"
            )
    return {**message, "content": "\n".join(texts)}


def as_parts(message: Message) -> Message:
    """The message with a string content written as a list of one text part."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _line(error: BaseException) -> str:
    """The words " on line N" of the template, when the traceback tells."""
    line: int | None = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" on line {line}"
