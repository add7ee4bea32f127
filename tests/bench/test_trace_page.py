"""Trace page: well-formed, closed to the outside, and every token in it, made safe."""

import json
import math
from collections.abc import Sequence
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pydflash.bench.trace_page import Trace, page, to_json
from pydflash.bench.trace_tree import shown, tree
from pydflash.errors import EngineError
from pydflash.spec.trace import RoundTrace

HTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
TEXTS = {
    1: "The",
    2: " sky",
    3: "</script><b>",
    4: "\"&amp;'",
    5: "\n\t",
    6: "\x00\x1b[31m",
    7: "\ud800",
    8: "‮evil",
    9: "漢字",
    10: "x" * 60,
    11: "",
    12: "]]>",
}


def text(tokens: Sequence[int]) -> str:
    return "".join(TEXTS[t] for t in tokens)


def example() -> Trace:
    first = RoundTrace(
        position=5,
        tokens=(1, 2, 3, 4, 5),
        parents=(-1, 0, 0, 1, 3),
        logp=(0.0, math.log(0.5), math.log(0.25), math.log(0.125), -30.0),
        path=(0, 1, 3),
        drawn=6,
        draft_s=0.001,
        step_s=0.003,
        rows=8,
    )
    second = RoundTrace(
        position=8,
        tokens=(6, 7, 8, 9),
        parents=(-1, 0, 1, 0),
        logp=(0.0, -0.1, -0.2, -3.0),
        path=(0,),
        drawn=10,
        draft_s=0.001,
        step_s=0.001,
        rows=8,
    )
    third = RoundTrace(
        position=9,
        tokens=(10, 12),
        parents=(-1, 0),
        logp=(0.0, -0.7),
        path=(0, 1),
        drawn=11,
        draft_s=0.0,
        step_s=0.002,
        rows=2,
    )
    return Trace(
        model="<model>",
        drafter="a & b",
        prompt="Say <hi> &\nbye\x07",
        start=5,
        tokens=(1, 2, 4, 6, 10, 12, 11),
        rounds=(first, second, third),
        target_logp=(-0.1, math.log(0.75), -0.2, -0.3, -0.4, -0.5, -0.6),
    )


def test_page_is_well_formed_and_has_every_token() -> None:
    written = page(example(), text)
    root = ElementTree.fromstring(written)
    titles = [t.text or "" for t in root.iter(f"{SVG}title")]
    for r in example().rounds:
        for token in (*r.tokens, r.drawn):
            assert any(t.startswith(f"{shown(TEXTS[token])}: ") for t in titles), TEXTS[token]
    assert len(titles) == sum(len(r.tokens) + 1 for r in example().rounds)
    assert [e.get("id") for e in root.iter(f"{HTML}details") if e.get("id")] == [
        "round-1",
        "round-2",
        "round-3",
    ]
    assert "\x00" not in written
    assert "\x1b" not in written
    assert "‮" not in written


def test_page_holds_no_element_that_a_token_wrote() -> None:
    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []
            self.links: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.append(tag)
            links = {"href", "src", "action", "data", "srcset", "poster"}
            self.links += [value or "" for name, value in attrs if name in links]

    reader = Tags()
    reader.feed(page(example(), text))
    # <b> stands once in each round's summary, <script> once on the page, <model> and <hi> nowhere.
    assert reader.found.count("b") == 3
    assert reader.found.count("script") == 1
    assert not {"model", "hi"} & set(reader.found)
    assert reader.links == ["#round-1", "#round-2", "#round-3"]


def test_page_asks_for_nothing_from_outside() -> None:
    written = page(example(), text)
    assert "default-src 'none'" in written
    plain = written.replace("http://www.w3.org/1999/xhtml", "").replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert "http" not in plain.replace("http-equiv", "")
    assert "url(" not in plain
    assert "@import" not in plain
    assert "prefers-color-scheme: dark" in written


def test_answer_links_each_token_to_its_round() -> None:
    root = ElementTree.fromstring(page(example(), text))
    (answer,) = [e for e in root.iter(f"{HTML}p") if e.get("class") == "answer"]
    pieces = [(e.get("href"), e.text) for e in answer]
    assert pieces[0] == (None, "The")
    assert pieces[1] == ("#round-1", shown(text([2, 4, 6])))
    assert pieces[2] == ("#round-2", shown(text([10])))
    assert "".join(p[1] or "" for p in pieces) == shown(text(example().tokens))


def test_page_tells_costs_and_probabilities() -> None:
    written = page(example(), text)
    # Six tokens in three rounds; 8 ms in all, a quarter of it drafting.
    assert "2.00 tokens a round, 3.7 nodes a tree, 2.67 ms a round, 25% of it drafting." in written
    assert "Drafting 1.00 ms, step 3.00 ms for 8 rows: 1.33 ms a token." in written
    assert "2 of 4 drafts accepted, 3 tokens" in written
    assert "1 of 1 draft accepted, 2 tokens" in written
    assert "<q> sky</q> 75%" in written
    assert "✓ 50%" in written
    assert "&lt;0.1%" in written


def test_page_without_rounds_says_so() -> None:
    empty = Trace(model="m", drafter="d", prompt="p", start=1, tokens=(1, 2), rounds=())
    root = ElementTree.fromstring(page(empty, text))
    assert "Nothing was drafted." in "".join(root.itertext())


def test_json_has_texts_beside_ids() -> None:
    told = json.loads(json.dumps(to_json(example(), text)))
    assert (told["kind"], told["acceptance_length"]) == ("trace", 2.0)
    assert told["rounds"][0]["texts"] == [TEXTS[t] for t in (1, 2, 3, 4, 5)]
    assert told["rounds"][0]["parents"] == [-1, 0, 0, 1, 3]
    assert told["rounds"][1]["drawn_text"] == TEXTS[10]
    assert told["tokens"][1] == {"token": 2, "text": " sky"}


def test_tree_places_no_two_boxes_over_each_other() -> None:
    bushy = RoundTrace(
        position=0,
        tokens=(1, 2, 9, 1, 2, 9, 1, 2),
        parents=(-1, 0, 0, 0, 1, 1, 2, 6),
        logp=(0.0,) * 8,
        path=(0, 2, 6),
        drawn=10,
        draft_s=0,
        step_s=0,
        rows=8,
    )
    root = ElementTree.fromstring(tree(bushy, text))
    boxes = [
        tuple(float(e.get(k, "0")) for k in ("x", "y", "width", "height"))
        for e in root.iter(f"{SVG}rect")
    ]
    assert len(boxes) == 9
    for i, (ax, ay, aw, ah) in enumerate(boxes):
        assert 0 <= ax <= ax + aw <= float(root.get("width", "0"))
        assert 0 <= ay <= ay + ah <= float(root.get("height", "0"))
        for bx, by, bw, bh in boxes[:i]:
            apart = ax >= bx + bw or bx >= ax + aw or ay >= by + bh or by >= ay + ah
            assert apart
    kinds = [g.get("class") for g in root.iter(f"{SVG}g")]
    assert kinds == ["yes", "no", "yes", "no", "no", "no", "yes", "no", "end"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parents": (-1,)}, "2 tokens, 1 parents"),
        ({"parents": (-1, 1)}, "topological"),
        ({"path": ()}, "path"),
        ({"path": (1,)}, "path"),
        (
            {"tokens": (1, 2, 3), "parents": (-1, 0, 0), "logp": (0.0,) * 3, "path": (0, 1, 2)},
            "path",
        ),
    ],
)
def test_a_round_that_is_no_tree_is_refused(change: dict[str, object], said: str) -> None:
    good = {
        "position": 0,
        "tokens": (1, 2),
        "parents": (-1, 0),
        "logp": (0.0, -1.0),
        "path": (0,),
        "drawn": 3,
        "draft_s": 0.0,
        "step_s": 0.0,
        "rows": 2,
    }
    assert RoundTrace(**good).gained == (3,)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=said):
        RoundTrace(**{**good, **change})  # type: ignore[arg-type]
