"""Suite: who answers when, what is compared, and the table, chart and verdict made of it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pydflash.bench import suite as suites
from pydflash.bench.chart import chart
from pydflash.bench.pairs import Answered
from pydflash.bench.prompts import Case, Message, PromptSet
from pydflash.bench.suite import Suite, run_suite
from pydflash.bench.suite_report import markdown, sentences, tables, to_json
from pydflash.errors import ConfigError
from pydflash.sampling.params import SamplingParams
from pydflash.spec.stats import DraftStats

PARAMS = SamplingParams(max_tokens=20, seed=0)
HEAD: dict[str, Any] = {
    "model": {"file": "m<1>.gguf"},
    "cpu": "A & B",
    "threads": 2,
    "date": "2026-01-01",
    "commit": None,
    "drafter": "dflash",
}


class FakeSubject:
    """Answers with the prompt's own tokens; twice as fast with drafts. Remembers every call."""

    ctx = 64

    def __init__(self, *, drafts: bool = True, wrong: Sequence[int] = ()) -> None:
        self.drafts = drafts
        self.wrong = wrong
        self.calls: list[str] = []
        self.asked: list[list[Message]] = []

    def encode(self, messages: Sequence[Message]) -> list[int]:
        self.asked.append(list(messages))
        return [len(message["content"]) for message in messages]

    def answer(self, tokens: Sequence[int], params: SamplingParams, *, draft: bool) -> Answered:
        self.calls.append("draft" if draft else "plain")
        out = [tokens[0] + i for i in range(11)]
        if draft and tokens[0] in self.wrong:
            out[4] += 1
        drafting = DraftStats(
            rounds=5, tokens=10, offered=[5, 5], accepted=[4, 1], draft_s=0.1, step_s=0.3
        )
        return Answered(
            tokens=tuple(out),
            text=f"said {tokens[0]}",
            steps=10,
            prefill_s=0.1,
            decode_s=0.5 if draft else 1.0,
            drafting=drafting if draft else None,
        )


class FakePeer:
    """Takes three times as long as plain decoding."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def answer(self, tokens: Sequence[int], steps: int) -> Answered:
        self.calls.append("peer")
        return Answered(tokens=(), text="", steps=steps, prefill_s=0.1, decode_s=0.3 * steps)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "PAUSE_S", 0.0)


def questions(name: str, *lengths: int, later: tuple[str, ...] = ()) -> PromptSet:
    cases = tuple(
        Case(
            id=f"{name}/{n}",
            messages=({"role": "user", "content": "x" * n},),
            later=later,
        )
        for n in lengths
    )
    return PromptSet(name=name, cases=cases)


def test_ways_take_turns_after_a_warm_up() -> None:
    subject = FakeSubject()
    found = run_suite(subject, [questions("a", 1, 2), questions("b", 3)], PARAMS)
    assert subject.calls[:2] == ["plain", "draft"], "warm-up"
    assert subject.calls[2:] == ["plain", "draft", "draft", "plain", "plain", "draft"]
    assert [(task.task, len(task.pairs)) for task in found.tasks] == [("a", 2), ("b", 1)]
    assert found.whole.speedup == 2.0
    assert found.identical is True


def test_the_peer_sits_second_and_last_in_turn() -> None:
    subject = FakeSubject()
    heard: list[tuple[str, str]] = []
    found = run_suite(
        subject,
        [questions("a", 1, 2, 3, 4)],
        PARAMS,
        peer=FakePeer(subject.calls),
        on_pair=lambda task, pair: heard.append((task, pair.id)),
    )
    turns = [tuple(subject.calls[3 + 3 * i : 6 + 3 * i]) for i in range(4)]
    assert turns == [
        ("plain", "draft", "peer"),
        ("draft", "plain", "peer"),
        ("plain", "peer", "draft"),
        ("draft", "peer", "plain"),
    ]
    assert heard == [("a", f"a/{n}") for n in (1, 2, 3, 4)]
    assert found.whole.over_peer == pytest.approx(6.0)
    assert found.whole.plain_over_peer == pytest.approx(3.0)


def test_later_turns_follow_the_answer() -> None:
    subject = FakeSubject()
    found = run_suite(subject, [questions("m", 5, later=("And?", "Why?"))], PARAMS)
    assert [pair.id for pair in found.tasks[0].pairs] == ["m/5.1", "m/5.2", "m/5.3"]
    assert [m["content"] for m in subject.asked[-1]] == [
        "xxxxx",
        "said 5",
        "And?",
        "said 5",
        "Why?",
    ]


def test_what_does_not_fit_is_left_out() -> None:
    long = PromptSet(
        name="a",
        cases=(Case(id="long", messages=({"role": "user", "content": "x"},) * 45),),
    )
    found = run_suite(FakeSubject(), [long, questions("b", 1)], PARAMS)
    assert found.skipped == ("long",)
    assert [task.task for task in found.tasks] == ["b"]
    assert "longer than the context: long." in sentences(found)[-1]
    with pytest.raises(ConfigError, match="no prompt fits: the context holds 64"):
        run_suite(FakeSubject(), [long], PARAMS)


def test_changed_answers_are_told() -> None:
    found = run_suite(FakeSubject(wrong=(2, 3)), [questions("a", 1, 2, 3)], PARAMS)
    assert found.identical is False
    said = "drafts changed 2 of 3 answers: a/2 from token 4, a/3 from token 4"
    assert sentences(found)[0] == said
    assert to_json(found)["all"]["identical"] is False
    assert [p["differs_at"] for p in to_json(found)["prompts"]] == [None, 4, 4]


def run(*, drafts: bool = True, peer: bool = True) -> Suite:
    subject = FakeSubject(drafts=drafts)
    sets = [questions("a|b", 1, 2), questions("c", 3)]
    return run_suite(subject, sets, PARAMS, peer=FakePeer([]) if peer else None)


def test_tables_have_the_seeds_columns_and_what_limits_them() -> None:
    speed, limits = tables(run(), "dflash", "llama.cpp")
    assert [r[0] for r in speed.rows] == [r[0] for r in limits.rows] == ["a|b", "c", "all"]
    row = dict(zip(speed.columns, speed.rows[-1], strict=True))
    assert row["AR tok/s"] == "10.0"
    assert row["dflash tok/s"] == "20.0"
    assert row["acceptance length"] == "2.00"
    assert row["speedup"] == "2.00x"
    assert (row["llama.cpp tok/s"], row["over llama.cpp"]) == ("3.3", "6.00x")
    row = dict(zip(limits.columns, limits.rows[-1], strict=True))
    assert row["expected"] == "2.50x"  # 2 tokens a round of 0.08 s, a step of 0.1 s
    assert row["round / step"] == "0.80"
    assert (row["draft share"], row["other share"]) == ("20%", "20%")


def test_without_a_drafter_only_plain_figures_stand() -> None:
    found = run(drafts=False, peer=False)
    (speed,) = tables(found, "dflash", None)
    assert speed.columns == ["task", "n", "AR tok/s"]
    assert speed.rows[0] == ["a|b", "2", "10.0"]
    assert sentences(found) == ["No drafter is loaded: plain decoding only."]


def test_markdown_has_straight_tables() -> None:
    text = markdown(run(), "dflash", "llama.cpp", HEAD)
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert [len(block) for block in blocks] == [5, 5]
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1
        assert block[2].startswith("| a\\|b | 2")
    assert "- All 3 answers have the same tokens with and without drafts." in text
    assert "- Accepted by depth, c: 80% 20%" in text


def test_chart_is_well_formed_and_labelled() -> None:
    document = json.loads(json.dumps(HEAD | to_json(run())))
    root = ElementTree.fromstring(chart(document))
    words = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Tokens a second, m<1>.gguf" in words
    assert "20.0 dflash, 2.00x plain" in words
    assert "3.3 llama.cpp" in words
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("class") != "paper"]
    assert len(bars) == 6
    widths = {e.get("class"): float(e.get("width", 0)) for e in bars}
    assert widths["draft"] == pytest.approx(2 * widths["plain"], rel=0.01)
    ends = [float(e.get("x", 0)) + float(e.get("width", 0)) for e in bars]
    assert max(ends) < float(root.get("width", 0))
    assert "prefers-color-scheme: dark" in chart(document)


def test_chart_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    root = ElementTree.fromstring(chart(HEAD | to_json(run(drafts=False, peer=False))))
    kinds = [e.get("class") for e in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert kinds == ["paper", "plain", "plain"]
