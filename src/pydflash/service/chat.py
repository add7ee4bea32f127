"""The contract between the servers' faces and what answers: a request, its events, and who gives them.

Invariant: a reply that is not streamed is the `fold` of the same events. No tensors.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydflash.sampling.params import SamplingParams
from pydflash.service.constraint import Constraint
from pydflash.service.events import Timings
from pydflash.service.status import StatusBoard
from pydflash.spec.stats import DraftStats
from pydflash.text.budget import CloseKind
from pydflash.text.cards import ModelCard
from pydflash.text.history import Turn
from pydflash.text.stream import Content, Reasoning, ReasoningClosed, ToolCallArguments
from pydflash.text.thinking import ThinkingRequest
from pydflash.text.toolset import Toolset

ChatReason = Literal["stop", "length", "tool_calls", "abort"]
Channel = Literal["content", "reasoning"]
Face = Literal["chat", "completions", "anthropic", "responses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether tools may or must be called; `name` is the one that must be, in mode `named`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One choice of one request of any API.

    Either `turns`, which the model's template makes a prompt of, or `prompt`, text or token ids that
    are continued as they stand (then the answer is plain content). `params.choice` is the choice's
    index among `n`; `params.max_tokens` None means the server's default. `template` holds the
    template's own switches. `is_silent`: the prompt is read (and kept for later requests), nothing is
    answered. `reuse`: the prefix cache may be used. `session` and `user` name who asks.
    """

    turns: tuple[Turn, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    tools: Toolset = field(default_factory=Toolset)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    params: SamplingParams = field(default_factory=SamplingParams)
    thinking: ThinkingRequest = field(default_factory=ThinkingRequest)
    constraint: Constraint | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    is_silent: bool = False
    reuse: bool = True
    speculate: bool = True
    session: str | None = None
    user: str | None = None
    face: Face = "chat"
    streamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStarted:
    """The request is accepted: nothing about it can be the client's fault any more."""

    prompt_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A token of the shown text. `text` is what of it is shown ("" for a part of a character).

    The `text`s of a channel's tokens, joined, are the channel's text. `raw` are its bytes; `top` the
    likeliest tokens in its place, with empty `top` of their own. `logprob` is natural.
    """

    token: int
    text: str
    raw: bytes
    logprob: float
    top: tuple["TokenInfo", ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The tokens of the Content or Reasoning event that comes next; only when asked for."""

    channel: Channel
    tokens: tuple[TokenInfo, ...]


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a declared tool begins. `index` counts the answer's calls from 0; `id` is `call_…`."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is over: its `ToolCallArguments`, joined, are `arguments`.

    `complete` is false if the text broke off: then `arguments` may not be JSON.
    """

    index: int
    id: str
    name: str
    arguments: str
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatUsage:
    """In tokens. `reasoning_tokens` are part of `completion_tokens`, `cached_tokens` of the prompt's."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    draft: DraftStats | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFinished:
    """The last event. `stop`: the stop string that ended it. `close_kind`: who closed the thought."""

    reason: ChatReason
    usage: ChatUsage
    timings: Timings
    seed: int
    stop: str | None = None
    close_kind: CloseKind | None = None
    degenerate: bool = False


ChatEvent = (
    ChatStarted
    | Content
    | Reasoning
    | ReasoningClosed
    | TokenLogprobs
    | CallStart
    | ToolCallArguments
    | CallEnd
    | ChatFinished
)


@dataclass(slots=True, kw_only=True)
class ChatReply:
    """A whole answer. `logprobs` by channel, empty when they were not asked for."""

    finished: ChatFinished
    content: str = ""
    reasoning: str = ""
    calls: list[CallEnd] = field(default_factory=list)
    logprobs: dict[Channel, list[TokenInfo]] = field(default_factory=dict)


async def fold(events: AsyncIterator[ChatEvent]) -> ChatReply:
    """The reply that a stream amounts to. Raises what the stream raises."""
    return folded([event async for event in events])


def folded(events: Iterable[ChatEvent]) -> ChatReply:
    """The reply that these events, all of a stream, amount to."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallEnd] = []
    logprobs: dict[Channel, list[TokenInfo]] = {}
    finished: ChatFinished | None = None
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallEnd():
                calls.append(event)
            case TokenLogprobs(channel, tokens):
                logprobs.setdefault(channel, []).extend(tokens)
            case ChatFinished():
                finished = event
    assert finished is not None, "a stream ends with ChatFinished"
    return ChatReply(
        finished=finished,
        content="".join(content),
        reasoning="".join(reasoning),
        calls=calls,
        logprobs=logprobs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the faces may say of the model. `plan`: what was chosen at load, for people."""

    name: str
    arch: str
    path: str
    max_ctx: int
    vocab_size: int
    max_tokens: int  # of an answer, when the request does not say
    card: ModelCard
    created: int  # seconds since 1970
    drafter: str | None = None
    drafting: Literal["off", "dflash", "lookup"] = "off"
    template_source: str = ""
    max_concurrency: int = 1
    ops: str = ""
    device: str = "cpu"
    cache_types: tuple[str, str] = ("f16", "f16")
    plan: tuple[str, ...] = ()


class Chat(Protocol):
    """What the servers talk to: `ChatService`, or a script in tests."""

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def board(self) -> StatusBoard:
        """What is going on and what has been, for the status pages and the metrics."""
        ...

    def stream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """ChatStarted, the answer, ChatFinished. Closing it early (`aclose`) aborts the request.

        Raises RequestError in place of ChatStarted; EngineError at any time.
        """
        ...

    async def count_tokens(self, request: ChatRequest) -> int:
        """Tokens of the request's prompt; nothing is generated."""
        ...

    async def render(self, request: ChatRequest) -> str:
        """The prompt's text, by the model's template."""
        ...

    async def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]: ...

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids. Raises RequestError for one that does not exist."""
        ...
