"""`pydflash bench suite` and `pydflash trace`, over a tiny model."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pydflash.cli.main import main

WORKER = """#!{python}
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "load":
        told = {{"vocab_size": 320, "version": "peer 1"}}
    else:
        assert asked["do"] == "answer", asked
        told = {{"tokens": [1] * asked["count"], "prefill_s": 1.0, "decode_s": 100.0 * asked["count"]}}
    print(json.dumps({{"ok": True, **told}}), flush=True)
"""
TINY = ["--threads", "1", "--ops", "ref", "--max-ctx", "128", "--max-tokens", "4", "--ignore-eos"]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in ("One", "Two", "Six")))
    return path


def test_suite_measures_plain_decoding_and_a_peer(
    tiny_llama: Path, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(WORKER.format(python=sys.executable))
    python.chmod(0o755)
    out, table, chart = (tmp_path / name for name in ("s.json", "s.md", "s.svg"))
    words = ["bench", "suite", str(tiny_llama), "--tasks", f"{mine}", "--limit", "2", *TINY]
    words += ["--json", str(out), "--markdown", str(table), "--svg", str(chart)]
    assert main([*words, "--vs", "llama.cpp", "--peer-python", str(python)]) == 0
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
