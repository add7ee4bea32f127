"""ChannelSplitter: an answer's text to reasoning, content and tool calls, cut at stop strings.

Invariant: any cutting of the same text into pieces gives the same events, but for where pieces of
one kind are cut. It is one reader of a `Source`, which makes that so by construction. Text is held
back only as long as a marker, a stop string or a call may still come of it.
"""

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
        self._space = ""  # white space after the visible text, dropped if a marker follows
        self._last = ""  # the visible character before that
        self._fresh = True  # nothing visible yet since the start or the last marker
        self._strip = False  # the white space that comes next is dropped
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
            self._show(self._space)
            self._cut()
        except _StoppedError:
            return

    def _read_reasoning(self) -> Reading[None]:
        form, words = self._form, words_of(*self._form.markers)
        self.in_reasoning = True
        if form.label:
            yield from self._source.match(words_of(form.label))
        said, space = False, ""
        while True:
            text, word = yield from self._source.run(words)
            text, over = (space + text if said else text.lstrip()), not text and not word
            bare = text.rstrip()
            space = text[len(bare) :]
            if bare:
                said = True
                self._events.append(Reasoning(bare))
            if over or word == form.reasoning_close:
                break
        self.in_reasoning = over
        if not over:
            self._events.append(ReasoningClosed())
            self._begin()

    def _read_content(self) -> Reading[None]:
        while True:
            if self._fresh and self._openers and (yield from self._read_bare()):
                continue
            text, word = yield from self._source.run(self._words)
            self._say(text)
            if not word and not text:
                return
            if word in self._openers:
                yield from self._read_call(self._openers[word], word)
            elif word == self._form.reasoning_open:
                self._cut()
                yield from self._read_reasoning()
            elif word and self._fresh:
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
        glued = opener.after_gap and (self._space or self._last)[-1:].isalnum()
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
        """After a marker: as at the start, but for white space."""
        self._fresh = self._strip = True
        self._space = self._last = ""

    def _emit(self, event: StreamEvent) -> None:
        """An event of a call. Stop strings do not reach across it."""
        if isinstance(event, ToolCallStart):
            self._cut()
        self._events.append(event)

    def _say(self, text: str) -> None:
        """Visible text, but for white space that a marker may follow."""
        if self._strip:
            text = text.lstrip()
            self._strip = not text
        bare = text.rstrip()
        if bare:
            self._show(self._space + bare)
            self._fresh, self._last, self._space = False, bare[-1], text[len(bare) :]
        else:
            self._space += text

    def _show(self, text: str) -> None:
        emit, hit = self._stops.push(text)
        self._stop_at(emit, hit)

    def _cut(self) -> None:
        """The visible text is interrupted: let go of what was held for a stop string."""
        self._space = ""
        emit, hit = self._stops.flush()
        self._stop_at(emit, hit)

    def _stop_at(self, emit: str, hit: str | None) -> None:
        if emit:
            self._events.append(Content(emit))
        if hit is not None:
            self.stop = hit
            raise _StoppedError


class _StoppedError(Exception):
    """A stop string came."""
