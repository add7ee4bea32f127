"""LLM: the blocking Python API. `generate`, `chat`, `stream`, and conversations."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from pydflash import catalog
from pydflash.config import EngineConfig
from pydflash.engine.request import Request
from pydflash.sampling.params import SamplingParams
from pydflash.service.answer import Answer
from pydflash.service.build import Loaded, load_apart
from pydflash.service.constraint import Constraint
from pydflash.service.events import Event, Finished, TextDelta, TokenLogprob
from pydflash.service.guidance import Guidance
from pydflash.service.worker import Worker
from pydflash.text.formats import detect

Message = Mapping[str, Any]
Prompt = str | Sequence[int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A whole answer: the fold of its stream."""

    text: str
    tokens: tuple[int, ...]
    finish: Finished
    logprobs: tuple[TokenLogprob, ...] = ()


class LLM:
    """A loaded model. Threads may share it; requests run together up to `max_concurrency`."""

    def __init__(
        self,
        model: str | Path,
        *,
        config: EngineConfig | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """`model` is a catalogue name, a path, or hf:owner/repo/file."""
        path = model if isinstance(model, Path) else catalog.resolve(model)
        self.loaded: Loaded = load_apart(path, config or EngineConfig(), progress=progress)
        self.tokenizer = self.loaded.tokenizer
        self._guidance = Guidance(self.tokenizer)
        self._worker = Worker(self.loaded.engine, self.loaded.thread)

    @property
    def plan(self) -> list[str]:
        """What was chosen at load, in lines for a person."""
        return self.loaded.lines()

    @overload
    def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: str | list[int] | list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
    ) -> Completion | list[Completion]:
        """Continue a prompt (text or token ids), or several at once."""
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return fold(self.stream(prompt, params, constraint=constraint))
        streams = [self.stream(p, params, constraint=constraint) for p in prompt]  # type: ignore[arg-type]
        return [fold(stream) for stream in streams]

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        **template: Any,
    ) -> Completion:
        """Answer a conversation. `template` arguments reach the chat template."""
        return fold(self.stream(messages, params, constraint=constraint, **template))

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        constraint: Constraint | None = None,
        **template: Any,
    ) -> Iterator[Event]:
        """The answer as it comes. The request starts now; closing the iterator aborts it.

        A constraint holds from the end of the reasoning on if the prompt leaves the model inside it.
        """
        tokens = self.encode(prompt, **template)
        if constraint is not None and not constraint.after:
            constraint = replace(constraint, after=self._reasoning_close(tokens))
        return self.start(tokens, params or SamplingParams(), constraint=constraint)

    def encode(self, prompt: Prompt | Sequence[Message], **template: Any) -> list[int]:
        """Token ids of a prompt: text, ids, or messages through the chat template."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True)
        if prompt and not isinstance(prompt[0], int):
            text = self.loaded.template.render(prompt, **template)  # type: ignore[arg-type]
            tokens = self.tokenizer.encode(text, add_special=True)
            # A template that writes the beginning of text itself must not get a second one.
            bos = self.tokenizer.bos
            return tokens[1:] if tokens[:2] == [bos, bos] else tokens
        return list(prompt)  # type: ignore[arg-type]

    def start(
        self,
        tokens: Sequence[int],
        params: SamplingParams,
        *,
        speculate: bool = True,
        constraint: Constraint | None = None,
        capture_at: Sequence[int] = (),
    ) -> Answer:
        """Start a request on token ids. `speculate`: verify drafts, which changes speed and nothing else.

        `constraint`: what the answer must be a text of; RequestError if it is bad, ConfigError if the
        `grammar` extra is not installed. `capture_at`: lengths of the prompt that later requests may come
        back to, see `Request`.
        """
        seed = secrets.randbits(63) if params.seed is None else params.seed
        request = Request(
            prompt=tuple(tokens),
            params=params,
            seed=seed,
            grammar=self._guidance.compile(constraint) if constraint is not None else None,
            speculate=speculate,
            capture_at=tuple(capture_at),
        )
        return Answer(self._worker, self._worker.submit(request), self.tokenizer)

    def _reasoning_close(self, tokens: Sequence[int]) -> str:
        """What ends the reasoning that a prompt leaves open, "" if it leaves none."""
        form = detect(self.loaded.template.source, self.loaded.engine.model.arch)
        end = self.tokenizer.decode(tokens[-16:], continuing=True)
        return form.reasoning_close if form.opens_reasoning(end) else ""

    def conversation(self, system: str | None = None) -> "Conversation":
        """A dialogue that is not re-read at every turn."""
        return Conversation(self, system)

    def forget(self) -> None:
        """Drop what finished requests left for later ones to start from."""
        self._worker.forget()

    def call(self, work: Callable[[], T]) -> T:
        """Run something on the engine's thread, between two steps; its result or what it raised."""
        return self._worker.call(work)

    def close(self) -> None:
        self._worker.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Conversation:
    """Messages so far. The prefix cache remembers the model's state after them."""

    def __init__(self, llm: LLM, system: str | None) -> None:
        self._llm = llm
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.stats: Finished | None = None

    def send(self, text: str, params: SamplingParams | None = None) -> Iterator[Event]:
        """Say something; the events of the answer. One that is cut short is kept as far as it got."""
        asked = [*self.messages, {"role": "user", "content": text}]
        head = [{"role": "system", "content": self.system}] if self.system else []
        tokens = self._llm.encode([*head, *asked])
        events = self._llm.start(tokens, params or SamplingParams())
        said: list[str] = []
        try:
            for event in events:
                if isinstance(event, TextDelta):
                    said.append(event.text)
                else:
                    self.stats = event
                yield event
        finally:
            events.close()
            self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]

    def reset(self) -> None:
        """Forget every message but the system prompt."""
        self.messages.clear()


def fold(events: Iterator[Event]) -> Completion:
    """A stream to the whole answer."""
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    for event in events:
        if isinstance(event, Finished):
            return Completion(
                text="".join(text),
                tokens=event.tokens,
                finish=event,
                logprobs=tuple(logprobs),
            )
        text.append(event.text)
        logprobs.extend(event.logprobs)
    raise AssertionError("a stream ends with Finished")
