"""StopMatcher: what flows on, what is held back, and which stop string wins."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydflash.errors import RequestError
from pydflash.text.stops import StopMatcher


def run(stops: tuple[str, ...], pushes: list[str]) -> tuple[str, str | None]:
    """All text emitted and the stop string hit."""
    matcher = StopMatcher(stops)
    said = ""
    for text in pushes:
        emit, hit = matcher.push(text)
        said += emit
        if hit is not None:
            return said, hit
    emit, hit = matcher.flush()
    return said + emit, hit


def expected(stops: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """The same by looking at the whole text at every place in turn."""
    for start in range(len(text)):
        here = [stop for stop in stops if text.startswith(stop, start)]
        if here:
            return text[:start], max(here, key=len)
    return text, None


def test_no_stops_pass_everything() -> None:
    matcher = StopMatcher(())
    assert matcher.push("abc") == ("abc", None)
    assert matcher.flush() == ("", None)


def test_holds_back_only_a_possible_prefix() -> None:
    matcher = StopMatcher(("###",))
    assert matcher.push("ab#") == ("ab", None)
    assert matcher.push("#") == ("", None)
    assert matcher.push("c#") == ("##c", None)
    assert matcher.flush() == ("#", None)


def test_hit_drops_the_stop_and_all_after() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.push("one E") == ("one ", None)
    assert matcher.push("ND two") == ("", "END")
    assert matcher.push("three") == ("", None)
    assert matcher.flush() == ("", None)


@pytest.mark.parametrize(
    ("stops", "pushes", "want"),
    [
        (("b", "abc"), ["ab", "c"], ("", "abc")),
        (("b", "abc"), ["ab", "d"], ("a", "b")),
        (("b", "abc"), ["ab"], ("a", "b")),
        (("ab", "abc"), ["xabcd"], ("x", "abc")),
        (("aab",), ["aa", "aab"], ("aa", "aab")),
        (("\n\n", "\nUser:"), ["hi\n", "User", ": x"], ("hi", "\nUser:")),
    ],
)
def test_earliest_then_longest_wins(
    stops: tuple[str, ...], pushes: list[str], want: tuple[str, str | None]
) -> None:
    assert run(stops, pushes) == want


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("abc", max_size=4), max_size=8),
)
@settings(max_examples=500, deadline=None)
def test_equals_a_scan_of_the_whole_text(stops: list[str], pushes: list[str]) -> None:
    text, hit = run(tuple(stops), pushes)
    want_text, want_hit = expected(tuple(stops), "".join(pushes))
    assert text == want_text
    assert (hit is None) == (want_hit is None)
    # Of stops that start together the longest seen so far is named; more text may make a longer one.
    assert hit is None or str(want_hit).startswith(hit)


def test_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError, match="stop string is empty") as caught:
        StopMatcher(("a", ""))
    assert caught.value.param == "stop"
