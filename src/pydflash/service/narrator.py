"""Narrator: an answer's text and tokens to the events of the chat contract.

It gives calls their ids and tells which tokens each shown piece is made of. Without log-probabilities
pieces pass as they come; with them a piece ends where a token does, so that every token is told once.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydflash.sampling.draw import Draw
from pydflash.service.chat import CallEnd, CallStart, Channel, ChatEvent, TokenInfo, TokenLogprobs
from pydflash.text.channels import ChannelSplitter
from pydflash.text.formats import Format
from pydflash.text.stops import StopMatcher
from pydflash.text.stream import (
    Content,
    Reasoning,
    ReasoningClosed,
    StreamEvent,
    ToolCallArguments,
    ToolCallDropped,
    ToolCallEnd,
    ToolCallStart,
)
from pydflash.text.toolset import Toolset

Piece = Content | Reasoning


@dataclass(slots=True)
class _Token:
    """A token and the span of the pushed text that it wrote."""

    draw: Draw
    start: int
    end: int


class PlainSplitter:
    """Text that is what it is: no channels, no calls, but stop strings."""

    num_calls = 0
    in_reasoning = False

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stop: str | None = None
        self._stops = StopMatcher(stops)
        self._at = 0

    def push(self, text: str) -> list[StreamEvent]:
        if self.stop is not None:
            return []
        emitted, self.stop = self._stops.push(text)
        return self._content(emitted)

    def finish(self) -> list[StreamEvent]:
        if self.stop is not None:
            return []
        emitted, self.stop = self._stops.flush()
        return self._content(emitted)

    def _content(self, text: str) -> list[StreamEvent]:
        at, self._at = self._at, self._at + len(text)
        return [Content(text, at)] if text else []


class Narrator:
    """Tells one answer. Once it `is_over` pushes give nothing."""

    def __init__(
        self,
        form: Format | None,
        *,
        tools: Toolset | None = None,
        starts_in_reasoning: bool = False,
        stops: tuple[str, ...] = (),
        raw: Callable[[int], bytes] | None = None,
        single_call: bool = False,
    ) -> None:
        """`form` None: plain text. `raw` gives a token's bytes; with it log-probabilities are told.
        `single_call`: the answer is over when a call is."""
        self._splitter: ChannelSplitter | PlainSplitter = (
            PlainSplitter(stops)
            if form is None
            else ChannelSplitter(
                form, tools=tools, starts_in_reasoning=starts_in_reasoning, stops=stops
            )
        )
        self._raw = raw
        self._single_call = single_call
        self._has_called = False
        self._size = 0  # characters pushed
        self._tokens: deque[_Token] = deque()
        self._held: Piece | None = None
        self.ids: list[str] = []
        self.reasoning: list[str] = []
        self.dropped: list[ToolCallDropped] = []

    @property
    def stop(self) -> str | None:
        return self._splitter.stop

    @property
    def is_over(self) -> bool:
        """Nothing more will be told: a stop string has come, or the one call that there may be."""
        return self.stop is not None or self._has_called

    @property
    def in_reasoning(self) -> bool:
        return self._splitter.in_reasoning

    @property
    def num_calls(self) -> int:
        return self._splitter.num_calls

    def push(self, text: str, draw: Draw | None = None) -> list[ChatEvent]:
        """The text that a token added (perhaps none), or that came without one."""
        if self._has_called:
            return []
        start, self._size = self._size, self._size + len(text)
        if self._raw is not None:
            if draw is not None and draw.logprob is not None:
                self._tokens.append(_Token(draw, start, self._size))
            elif text and self._tokens:
                self._tokens[-1].end = self._size  # the rest of a character cut short
        return self._tell(self._splitter.push(text))

    def finish(self) -> list[ChatEvent]:
        """The end of the text. ChatFinished is for the caller to add."""
        if self._has_called:
            return []
        return [*self._tell(self._splitter.finish()), *self._release()]

    def _tell(self, events: Iterable[StreamEvent]) -> list[ChatEvent]:
        told: list[ChatEvent] = []
        for event in events:
            if isinstance(event, Content | Reasoning):
                if isinstance(event, Reasoning):
                    self.reasoning.append(event.text)
                told += self._piece(event)
                continue
            told += self._release()
            match event:
                case ToolCallStart(index, name):
                    self.ids.append("call_" + secrets.token_hex(12))
                    told.append(CallStart(index, self.ids[index], name))
                case ToolCallEnd(index, name, arguments, complete):
                    told.append(CallEnd(index, self.ids[index], name, arguments, complete))
                    if self._single_call:
                        self._has_called = True
                        return told
                case ToolCallDropped():
                    self.dropped.append(event)
                case ToolCallArguments() | ReasoningClosed():
                    told.append(event)
        return told

    def _piece(self, piece: Piece) -> list[ChatEvent]:
        if self._raw is None:
            return [piece]
        held, told = self._held, list[ChatEvent]()
        if held is not None and type(held) is type(piece) and held.at + len(held.text) == piece.at:
            piece, self._held = type(piece)(held.text + piece.text, held.at), None
        else:
            told += self._release()
        end = piece.at + len(piece.text)
        cut = next((t.start for t in self._tokens if t.start < end < t.end), end)
        keep = max(cut - piece.at, 0)
        if keep:
            told += self._with_tokens(type(piece)(piece.text[:keep], piece.at))
        if keep < len(piece.text):
            self._held = type(piece)(piece.text[keep:], piece.at + keep)
        return told

    def _release(self) -> list[ChatEvent]:
        """What waited for the rest of its token, which is not shown."""
        held, self._held = self._held, None
        return self._with_tokens(held) if held is not None else []

    def _with_tokens(self, piece: Piece) -> list[ChatEvent]:
        start, end = piece.at, piece.at + len(piece.text)
        while self._tokens and self._tokens[0].end <= start and self._tokens[0].start < start:
            self._tokens.popleft()
        found: list[TokenInfo] = []
        for token in self._tokens:
            if token.start >= end:
                break
            shown = piece.text[max(token.start - start, 0) : max(token.end - start, 0)]
            found.append(self._info(token, shown))
        while self._tokens and self._tokens[0].start < end and self._tokens[0].end <= end:
            self._tokens.popleft()
        channel: Channel = "content" if isinstance(piece, Content) else "reasoning"
        return [TokenLogprobs(channel, tuple(found)), piece] if found else [piece]

    def _info(self, token: _Token, shown: str) -> TokenInfo:
        assert self._raw is not None
        draw = token.draw
        raw = self._raw(draw.token)
        whole = len(shown) == token.end - token.start
        assert draw.logprob is not None
        return TokenInfo(
            token=draw.token,
            text=shown,
            raw=raw if whole else shown.encode(),
            logprob=draw.logprob,
            top=tuple(self._alternative(token, logprob) for token, logprob in draw.top),
        )

    def _alternative(self, token: int, logprob: float) -> TokenInfo:
        assert self._raw is not None
        raw = self._raw(token)
        return TokenInfo(token=token, text=raw.decode("utf-8", "replace"), raw=raw, logprob=logprob)
