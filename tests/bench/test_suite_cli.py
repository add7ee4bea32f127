"""`pydflash bench suite` and `pydflash trace`, over a tiny model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pydflash.bench.pairs import Answered
from pydflash.bench.subject import Local
from pydflash.cli.main import main
from tests.fake_peer import FakePeer

TINY = ["--threads", "1", "--ops", "ref", "--max-ctx", "128", "--ignore-eos"]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in ("One", "Two", "Six")))
    return path


def test_suite_measures_plain_decoding_and_a_peer(
    tiny_llama: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakePeer(tmp_path)
    out, table, chart = (tmp_path / name for name in ("s.json", "s.md", "s.svg"))
    words = ["bench", "suite", str(tiny_llama), "--tasks", f"{mine}", "--limit", "2", *TINY]
    words += ["--max-tokens", "4"]
    words += ["--json", str(out), "--markdown", str(table), "--svg", str(chart)]
    assert main([*words, "--vs", "llama.cpp", "--peer-python", fake.python]) == 0
    assert {a["do"] for a in fake.asked()} == {"load", "answer"}
    told = json.loads(out.read_text())
    assert (told["kind"], told["peer"], told["max_tokens"]) == ("suite", "peer 1", 4)
    assert [p["id"] for p in told["prompts"]] == ["mine/1", "mine/2"]
    assert {p["tokens"] for p in told["prompts"]} == {4}
    assert {p["peer"]["decode_s"] for p in told["prompts"]} == {400.0}
    assert told["all"]["over_peer"] > 1
    assert str(tmp_path) not in out.read_text()
    assert "| mine | 2 |" in table.read_text()
    ElementTree.fromstring(chart.read_text())
    said = capsys.readouterr()
    assert "mine 2 of 2" in said.err
    assert "llama.cpp" in said.out


def test_suite_compares_drafts_token_by_token(
    tiny_llama: Path, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s.json"
    words = ["bench", "suite", str(tiny_llama), "--tasks", str(mine), *TINY, "--json", str(out)]
    words += ["--draft", "lookup", "--ddtree-budget", "6", "--max-tokens", "24"]
    assert main(words) == 0
    told = json.loads(out.read_text())
    assert (told["identical"], told["drafter"]) == (True, "lookup")
    assert told["all"]["rounds"] > 0
    assert told["all"]["acceptance_length"] >= 1.0
    assert told["all"]["expected_speedup"] > 0
    assert all(p["draft"]["rounds"] <= 24 for p in told["prompts"])

    honest = Local.answer

    def lying(self: Local, tokens: Any, params: Any, *, draft: bool) -> Answered:
        found = honest(self, tokens, params, draft=draft)
        return replace(found, tokens=(*found.tokens[:5], 0)) if draft else found

    monkeypatch.setattr(Local, "answer", lying)
    assert main(words) == 1
    told = json.loads(out.read_text())
    assert told["identical"] is False
    assert [p["differs_at"] for p in told["prompts"]] == [5, 5, 5]


def test_trace_covers_the_answer(tiny_llama: Path, tmp_path: Path) -> None:
    html, data = tmp_path / "t.html", tmp_path / "t.json"
    words = ["trace", str(tiny_llama), "ababababab", *TINY, "--max-tokens", "30"]
    words += ["--draft", "lookup", "--ddtree-budget", "6", "--html", str(html), "--json", str(data)]
    assert main(words) == 0
    told = json.loads(data.read_text())
    assert len(told["tokens"]) == len(told["target_logp"]) == 30
    at = told["rounds"][0]["position"]
    drawn: list[int] = []
    for r in told["rounds"]:
        assert r["position"] == at + len(drawn)
        drawn += [*(r["tokens"][node] for node in r["path"][1:]), r["drawn"]]
    assert drawn == [t["token"] for t in told["tokens"][1:]]
    assert any(len(r["tokens"]) > 1 for r in told["rounds"])
    # The page closes every element; its first line is no XML.
    root = ElementTree.fromstring(html.read_text().split("\n", 1)[1])
    assert len([e for e in root.iter() if str(e.get("id")).startswith("round-")]) == len(
        told["rounds"]
    )


def test_trace_without_drafts_is_refused(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["trace", str(tiny_llama), "Hi", *TINY, "--html", str(tmp_path / "t.html")]
    assert main([*words, "--no-speculation"]) == 2
    assert "--no-speculation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "humanevil"], "humaneval, gsm8k, mtbench"),
        (["--tasks", ","], "names no task"),
        (["--limit", "-1"], "--limit -1"),
        (["--max-tokens", "0"], "--max-tokens 0"),
        (["--stop", "x"], "--stop"),
    ],
)
def test_suite_refuses_what_it_cannot_measure(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "suite", *words]) == 2
    assert said in capsys.readouterr().err


def test_suite_names_a_file_it_cannot_write(
    tiny_llama: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "suite", str(tiny_llama), "--tasks", str(mine), "--limit", "1", *TINY]
    words += ["--max-tokens", "4"]
    assert main([*words, "--svg", str(tmp_path / "none" / "x.svg")]) == 2
    assert "--svg" in capsys.readouterr().err


def test_trace_needs_a_place_for_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "Hello there"]) == 2
    assert "--html FILE" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["bench", "suite"], ["trace"]])
def test_help_names_the_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    wanted = (
        ["--tasks", "--limit", "--vs", "--svg"] if words[0] == "bench" else ["--html", "--json"]
    )
    assert all(flag in out for flag in [*wanted, "--max-tokens", "--temp"])
