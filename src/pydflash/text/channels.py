"""ChannelSplitter: an answer's text to reasoning, content and tool calls, cut at stop strings.

Invariant: any cutting of the same text into pieces gives the same events, but for where pieces of
one kind are cut. It is one reader of a `Source`, which makes that so by construction. Text is held
back only as long as a marker, a stop string or a call may still come of it.
"""

from collections import deque

from pydflash.text.calls import Calls
from pydflash.text.formats import Format
from pydflash.text.openers import STRAYS, Opener, openers
from pydflash.text.source import Reading, Source, Words, words_of
from pydflash.text.stops import StopMatcher
from pydflash.text.stream import (
    Content,
    Reasoning,
    ReasoningClosed,
    StreamEvent,
    ToolCallDropped,
    ToolCallStart,
    merge,
)
from pydflash.text.tools import bare_json
from pydflash.text.toolset import Toolset
from pydflash.text.trim import Segment, Trimmer

_BARE = Opener(bare_json.read_bare)
_BRACE = Words(bare_json.OPEN)


class ChannelSplitter:
    """Splits one answer. `stop` is the stop string that ended it; after that pushes give nothing.

    White space next to markers is nobody's: around reasoning, and between text and calls. Without
    tools text in the form of a call is plain content.
    """

    def __init__(
        self,
        form: Format,
        *,
        tools: Toolset | None = None,
        starts_in_reasoning: bool = False,
        stops: tuple[str, ...] = (),
    ) -> None:
        """Raises RequestError for an empty stop string."""
        self.stop: str | None = None
        self.in_reasoning = starts_in_reasoning
        self._form = form
        self._stops = StopMatcher(stops)
        self._source = Source()
        self._events: list[StreamEvent] = []
        self._calls = Calls(tools or Toolset(), self._emit)
        self._openers = openers(tools, bare_keyed=form.calls == "keyed") if tools else {}
        self._words = words_of(*form.markers, *self._openers, *(STRAYS if tools else ()))
        self._eager = any(stop[-1:].isspace() for stop in stops)
        self._visible = Trimmer(eager=self._eager)  # the text since the start or the last marker
        self._shown: deque[tuple[int, int]] = deque()  # (offset, size) of what the stops may hold
        self._process = self._run()
        self._resume()

    @property
    def num_calls(self) -> int:
        """Calls of declared tools so far."""
        return self._calls.count

    def push(self, text: str) -> list[StreamEvent]:
        """The events that more text (whole characters, markers included) makes certain."""
        if self.stop is not None:
            return []
        self._source.feed(text)
        return self._resume()

    def finish(self) -> list[StreamEvent]:
        """The end of the text: what was held back, and the ends of what was left open."""
        if self.stop is not None:
            return []
        self._source.end()
        return self._resume()

    def _resume(self) -> list[StreamEvent]:
        next(self._process, None)
        events = merge(self._events)
        self._events.clear()
        return events

    def _run(self) -> Reading[None]:
        try:
            if self.in_reasoning:
                yield from self._read_reasoning()
            yield from self._read_content()
            self._show(self._visible.held)
            self._cut()
        except _StoppedError:
            return

    def _read_reasoning(self) -> Reading[None]:
        form, words = self._form, words_of(*self._form.markers)
        self.in_reasoning = True
        if form.label:
            yield from self._source.match(words_of(form.label))
        thought = Trimmer(strip=True)
        while True:
            text, word = yield from self._source.run(words)
            at = self._source.offset - len(word) - len(text)
            self._events += [Reasoning(*segment) for segment in thought.push(text, at)]
            if word == form.reasoning_close:
                self.in_reasoning = False
                self._events.append(ReasoningClosed())
                self._begin()
                return
            if not text and not word:
                return

    def _read_content(self) -> Reading[None]:
        while True:
            if not self._visible.last and self._openers and (yield from self._read_bare()):
                continue
            text, word = yield from self._source.run(self._words)
            self._say(text, behind=len(word))
            if not word and not text:
                return
            if word in self._openers:
                yield from self._read_call(self._openers[word], word)
            elif word == self._form.reasoning_open:
                self._cut()
                yield from self._read_reasoning()
            elif word and not self._visible.last:
                self._begin()

    def _read_bare(self) -> Reading[bool]:
        """A call without tags can only stand where nothing visible has come before it."""
        self._say((yield from self._source.spaces()))
        found = yield from self._source.match(_BRACE)
        if found:
            yield from self._read_call(_BARE, found)
        return bool(found)

    def _read_call(self, opener: Opener, word: str) -> Reading[None]:
        self._source.mark(len(word))
        glued = opener.after_gap and not self._visible.held and self._visible.last.isalnum()
        if glued or (yield from opener.read(self._source, self._calls, word)) is None:
            self._source.rewind()
            self._say((yield from self._source.take()))
            return
        text = self._source.since_mark()
        self._cut()
        self._events += [ToolCallDropped(text, reason) for reason in self._calls.failures]
        self._calls.failures.clear()
        self._begin()

    def _begin(self) -> None:
        """After a marker."""
        self._visible = Trimmer(strip=True, eager=self._eager)

    def _emit(self, event: StreamEvent) -> None:
        """An event of a call. Stop strings do not reach across it."""
        if isinstance(event, ToolCallStart):
            self._cut()
        self._events.append(event)

    def _say(self, text: str, *, behind: int = 0) -> None:
        """Visible text that ends `behind` characters before the place."""
        at = self._source.offset - behind - len(text)
        self._show(self._visible.push(text, at))

    def _show(self, segments: list[Segment]) -> None:
        for text, at in segments:
            self._shown.append((at, len(text)))
            self._pass(*self._stops.push(text))

    def _cut(self) -> None:
        """The visible text is interrupted: let go of what was held for a stop string."""
        self._pass(*self._stops.flush())
        self._visible.held.clear()

    def _pass(self, text: str, hit: str | None) -> None:
        while text:
            at, size = self._shown.popleft()
            piece, text = text[:size], text[size:]
            self._events.append(Content(piece, at))
            if len(piece) < size:
                self._shown.appendleft((at + len(piece), size - len(piece)))
        if hit is not None:
            self.stop = hit
            raise _StoppedError


class _StoppedError(Exception):
    """A stop string came."""
