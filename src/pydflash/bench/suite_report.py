"""A suite's figures for people: the tables of terminal and Markdown, and the sentences below them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydflash.bench.pairs import TaskFigures
from pydflash.bench.suite import Suite


def to_json(suite: Suite) -> dict[str, Any]:
    """Figures of every task, of all together, and of every prompt."""
    return {
        "tasks": [task.to_json() for task in suite.tasks],
        "all": suite.whole.to_json(),
        "identical": suite.identical,
        "skipped": list(suite.skipped),
        "prompts": [
            {"task": task.task, **pair.to_json()} for task in suite.tasks for pair in task.pairs
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Words and figures, ready to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def tables(suite: Suite, drafter: str, peer: str | None) -> list[Table]:
    """The seeds' table, then what limits it. Columns nobody measured are left out."""
    figures = [*suite.tasks, suite.whole] if len(suite.tasks) > 1 else list(suite.tasks)
    columns = ["task", "n", "AR tok/s"]
    rows = [[f.task, str(len(f.pairs)), _number(f.plain_tok_s, 1)] for f in figures]
    if suite.identical is not None:
        columns += [f"{drafter} tok/s", "acceptance length", "speedup"]
        for row, f in zip(rows, figures, strict=True):
            row += [_number(f.draft_tok_s, 1), _number(f.acceptance, 2), _times(f.speedup)]
    if peer is not None:
        columns += [f"{peer} tok/s", f"over {peer}"]
        for row, f in zip(rows, figures, strict=True):
            row += [_number(f.peer_tok_s, 1), _times(f.over_peer)]
    out = [Table(title="Speed, medians over prompts", columns=columns, rows=rows)]
    if suite.identical is not None:
        out.append(_limits(figures))
    return out


def _limits(figures: Sequence[TaskFigures]) -> Table:
    columns = ["task", "speedup", "expected", "round / step", "nodes", "draft share", "other share"]
    rows = []
    for f in figures:
        drafting = f.drafting
        nodes = drafting.nodes / drafting.rounds if drafting else None
        row = [f.task, _times(f.speedup), _times(f.expected), _number(f.round_cost, 2)]
        rows.append([*row, _number(nodes, 1), _percent(f.draft_share), _percent(f.other_share)])
    return Table(title="What limits it", columns=columns, rows=rows)


def sentences(suite: Suite) -> list[str]:
    """Exactness first, then acceptance by depth, then what was left out."""
    whole = suite.whole
    out = []
    if suite.identical is None:
        out.append("No drafter is loaded: plain decoding only.")
    elif suite.identical:
        out.append(f"All {len(whole.pairs)} answers have the same tokens with and without drafts.")
    else:
        out.append(mismatch(suite))
    out += [
        f"Accepted by depth, {f.task}: " + " ".join(_percent(share) for share in f.by_depth)
        for f in suite.tasks
        if f.by_depth
    ]
    if suite.skipped:
        out.append(f"Left out, longer than the context: {', '.join(suite.skipped)}.")
    return out


def mismatch(suite: Suite) -> str:
    """Which answers drafts changed, and from which token on."""
    bad = suite.whole.mismatches
    shown = ", ".join(f"{pair.id} from token {pair.differs_at}" for pair in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return f"drafts changed {len(bad)} of {len(suite.whole.pairs)} answers: {shown}{more}"


def markdown(suite: Suite, drafter: str, peer: str | None, head: dict[str, Any]) -> str:
    """A section to paste: on what, the tables, the sentences."""
    lines = [
        f"{head['model']['file']} on {head['cpu']}, {head['threads']} threads, {head['date']}, "
        f"commit {(head['commit'] or 'unknown')[:12]}. Medians over prompts; ratios are paired.",
        "",
    ]
    for table in tables(suite, drafter, peer):
        ruler = ["---", *["---:"] * (len(table.columns) - 1)]
        lines += [_line(cells) for cells in (table.columns, ruler, *table.rows)]
        lines.append("")
    return "\n".join([*lines, *(f"- {said}" for said in sentences(suite))]) + "\n"


def progress_line(done: TaskFigures, total: int) -> str:
    """Where a run stands, for a terminal."""
    parts = [
        f"{done.task} {len(done.pairs)} of {total}",
        f"AR {_number(done.plain_tok_s, 1)} tok/s",
    ]
    if done.speedup is not None:
        parts.append(f"speedup {_times(done.speedup)}")
    return " · ".join(parts)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f}%"
