"""Narrator: which tokens a shown text is made of, however the text is cut into tokens."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pydflash.sampling.draw import Draw
from pydflash.service.chat import CallEnd, CallStart, ChatEvent, TokenInfo, TokenLogprobs
from pydflash.service.narrator import Narrator
from pydflash.text.formats import QWEN
from pydflash.text.stream import Content, Reasoning, ReasoningClosed, ToolCallArguments
from pydflash.text.toolset import Tool, Toolset

ANSWER = (
    "a thought \n</think>\n\n Some 🙂 text, then\n<tool_call>\n<function=f>\n<parameter=a>\n1\n"
    "</parameter>\n</function>\n</tool_call>\nmore ENDless"
)


def tell(pieces: list[str], stops: tuple[str, ...] = ()) -> list[ChatEvent]:
    """Every piece a token, whose id is its place."""
    narrator = Narrator(
        QWEN,
        tools=Toolset([Tool(name="f")]),
        starts_in_reasoning=True,
        stops=stops,
        raw=lambda token: pieces[token].encode(),
    )
    events: list[ChatEvent] = []
    for at, piece in enumerate(pieces):
        events += narrator.push(piece, Draw(token=at, logprob=-1.0))
    return [*events, *narrator.finish()]


def text_of(events: list[ChatEvent], kind: type) -> str:
    return "".join(e.text for e in events if isinstance(e, kind))


def tokens_of(events: list[ChatEvent], channel: str) -> list[TokenInfo]:
    found: list[TokenInfo] = []
    for event in events:
        if isinstance(event, TokenLogprobs) and event.channel == channel:
            found += event.tokens
    return found


@given(st.lists(st.integers(1, len(ANSWER) - 1), max_size=60), st.sampled_from([(), ("END",)]))
def test_any_cutting_tells_the_same(cuts: list[int], stops: tuple[str, ...]) -> None:
    places = [0, *sorted(set(cuts)), len(ANSWER)]
    pieces = [ANSWER[a:b] for a, b in pairwise(places)]
    events = tell(pieces, stops)
    end = "more " if stops else "more ENDless"
    assert text_of(events, Reasoning) == "a thought"
    assert text_of(events, Content) == "Some 🙂 text, then" + end
    for kind, channel in ((Content, "content"), (Reasoning, "reasoning")):
        tokens = tokens_of(events, channel)
        assert "".join(t.text for t in tokens) == text_of(events, kind)
        ids = [t.token for t in tokens]
        assert ids == sorted(ids)
        if max(map(len, pieces)) < 40:  # no token reaches across a whole call
            assert len(ids) == len(set(ids))
        assert all(t.text in pieces[t.token] for t in tokens)
    # The tokens of a piece come right before it.
    for event, after in pairwise(events):
        if isinstance(event, TokenLogprobs):
            assert isinstance(after, Content if event.channel == "content" else Reasoning)
    assert sum(isinstance(e, ReasoningClosed) for e in events) == 1
    (start,) = [e for e in events if isinstance(e, CallStart)]
    (ended,) = [e for e in events if isinstance(e, CallEnd)]
    assert (start.id, start.name) == (ended.id, ended.name)
    deltas = "".join(e.json_delta for e in events if isinstance(e, ToolCallArguments))
    assert deltas == ended.arguments
    assert json.loads(deltas) == {"a": "1"}


def test_a_character_of_several_tokens() -> None:
    narrator = Narrator(None, raw=lambda token: "🙂".encode()[token : token + 1])
    events: list[ChatEvent] = []
    for token in range(4):
        events += narrator.push("🙂" if token == 3 else "", Draw(token=token, logprob=-1.0))
    events += narrator.finish()
    tokens = tokens_of(events, "content")
    assert [t.text for t in tokens] == ["", "", "", "🙂"]
    assert b"".join(t.raw for t in tokens) == "🙂".encode()


def test_a_character_cut_short_belongs_to_its_last_token() -> None:
    narrator = Narrator(None, raw=lambda token: b"\xf0")
    events = narrator.push("", Draw(token=0, logprob=-1.0))
    events += narrator.push("\ufffd")
    events += narrator.finish()
    assert [t.text for t in tokens_of(events, "content")] == ["\ufffd"]


def test_without_bytes_nothing_is_told_of_tokens() -> None:
    narrator = Narrator(None)
    assert narrator.push("ab", Draw(token=0, logprob=-1.0)) == [Content("ab")]
