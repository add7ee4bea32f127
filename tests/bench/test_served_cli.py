"""`pydflash bench load`, `overhead` and `turns`, on a server of a tiny model in a process of its own."""

import json
from pathlib import Path

import pytest

from pydflash.bench.live import LiveServer
from pydflash.cli.main import main
from pydflash.errors import EngineError
from tests.tiny.gguf import tiny_gguf


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_many_clients_some_of_them_rude(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "load.json", tmp_path / "load.md"
    words = ["bench", "load", str(tiny_llama), "--clients", "12", "--seconds", "5"]
    words += ["--max-ctx", "512", "--kv-pages", "64", "--threads", "1", "--note", "A test."]
    assert main([*words, "--json", str(out), "--markdown", str(table)]) == 0, capsys.readouterr()
    told = json.loads(out.read_text())
    assert (told["kind"], told["clients"], told["wrong"], told["findings"]) == ("load", 12, [], [])
    assert told["answers"] > 12
    assert told["tokens"] > 100
    assert told["first_text_s"]["p50"] <= told["first_text_s"]["p95"]
    assert told["pages"]["total"] == 64
    end = told["pages"]["at_the_end"]
    assert (end["live"], end["used_pages"]) == (0, 0)
    assert end["free_pages"] + end["cached_pages"] == 64
    assert sum(told["errors"].values()) > 0, "some of what was sent had to be refused"
    assert told["memory"]["growth"] is None, "no run of minutes"
    assert all(sample["resident"] > 10**7 for sample in told["samples"])
    assert str(tmp_path) not in out.read_text() + table.read_text()
    assert "Nothing went wrong." in table.read_text()
    assert "A test." in table.read_text()


def test_what_http_costs(tiny_llama: Path, tmp_path: Path) -> None:
    out, table = tmp_path / "o.json", tmp_path / "o.md"
    words = ["bench", "overhead", str(tiny_llama), "--answer", "48", "--depth", "32"]
    words += ["--rounds", "2", "--threads", "1", "--json", str(out), "--markdown", str(table)]
    assert main(words) == 0
    told = json.loads(out.read_text())
    assert (told["kind"], told["tokens"], len(told["ratios"])) == ("overhead", 48, 2)
    assert min(told["engine_s"] + told["http_s"]) > 0
    assert told["ratio"] == pytest.approx(sum(told["ratios"]) / 2, abs=1e-3)
    assert f"{told['ratio']:.3f}" in table.read_text()


def test_a_second_turn_finds_the_first(tmp_path: Path) -> None:
    model = tiny_gguf(tmp_path / "tiny.gguf", "llama", context=1024)
    out, table = tmp_path / "t.json", tmp_path / "t.md"
    words = ["bench", "turns", str(model), "--tokens", "600", "--rounds", "1", "--threads", "1"]
    assert main([*words, "--json", str(out), "--markdown", str(table)]) == 0
    told = json.loads(out.read_text())
    (turns,) = told["turns"]
    assert 600 <= turns["prompt_tokens"] < 700
    assert turns["cached_tokens"] >= 512
    assert turns["sooner"] == pytest.approx(turns["first_s"] / turns["second_s"])
    assert told["sooner"] == turns["sooner"]
    assert f"Median: {told['sooner']:.1f}x" in table.read_text()


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"did not start: .*nothing\.gguf"):
        LiveServer(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    "words", [["load", "--clients", "0"], ["turns", "--tokens", "0"], ["overhead", "--rounds", "0"]]
)
def test_nothing_to_measure_is_refused(words: list[str], tiny_llama: Path) -> None:
    assert main(["bench", words[0], str(tiny_llama), *words[1:]]) == 2
