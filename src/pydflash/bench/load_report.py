"""What a load run found, as JSON, as Markdown and as a line while it runs."""

from dataclasses import asdict
from typing import Any

from pydflash.bench.load import LoadFigures, Sample, sparse

_EVERY_S = 10.0


def to_json(figures: LoadFigures) -> dict[str, Any]:
    return {
        "clients": figures.clients,
        "seconds": figures.seconds,
        "answers": figures.answers,
        "tokens": figures.tokens,
        "tok_s": round(figures.tok_s, 2),
        "first_text_s": {"p50": figures.first_s(0.5), "p95": figures.first_s(0.95)},
        "errors": dict(figures.errors.most_common()),
        "visits": {
            kind: dict(figures.visits[kind].most_common()) for kind in sorted(figures.visits)
        },
        "memory": {
            "second_minute_bytes": figures.resident(60, 120),
            "last_minute_bytes": figures.resident(figures.seconds - 60, figures.seconds),
            "growth": figures.growth,
        },
        "pages": {"total": figures.total_pages, "at_the_end": _sample(figures.last)},
        "wrong": figures.wrong,
        "findings": figures.findings,
        "samples": [_sample(sample) for sample in sparse(figures.samples, _EVERY_S)],
    }


def progress_line(figures: LoadFigures) -> str:
    """Where a run stands, for a terminal."""
    now = figures.samples[-1]
    visits = sum(sum(results.values()) for results in figures.visits.values())
    tok_s = figures.tokens / now.at_s if now.at_s else 0.0
    return (
        f"{now.at_s:.0f} of {figures.seconds:.0f} s · {visits} visits, {figures.answers} answered · "
        f"{tok_s:.1f} tok/s · {_mib(now.resident)} · {now.free_pages} pages free, "
        f"{now.cached_pages} cached · {figures.num_wrong} wrong"
    )


def markdown(figures: LoadFigures, head: dict[str, Any]) -> str:
    """A section to paste: on what, the sums, and every kind of visit."""
    growth, last = figures.growth, figures.last
    lines = [
        f"{head['model']['file']} on {head['cpu']}, {head['threads']} threads, {head['date']}, "
        f"commit {(head['commit'] or 'unknown')[:12]}: {figures.clients} clients for "
        f"{figures.seconds:.0f} s, `pydflash serve {' '.join(head['server_options'])}`.",
        *([f"\n{head['note']}"] if head.get("note") else []),
        "",
        "| | |",
        "|---|---:|",
        f"| answers | {figures.answers} |",
        f"| tokens per second, all clients | {figures.tok_s:.1f} |",
        f"| time to the first text, p50 / p95 | {_s(figures.first_s(0.5))} / "
        f"{_s(figures.first_s(0.95))} |",
        f"| resident memory, second / last minute | {_mib(figures.resident(60, 120))} / "
        f"{_mib(figures.resident(figures.seconds - 60, figures.seconds))} |",
        f"| growth | {'–' if growth is None else f'{growth:+.1%}'} |",
        f"| pages in use at the end, of {figures.total_pages} | "
        f"{'–' if last is None else last.used_pages} |",
        f"| visits that went wrong | {figures.num_wrong} |",
        "",
        "| visit | what came of it | times |",
        "|---|---|---:|",
    ]
    for kind in sorted(figures.visits):
        for result, count in figures.visits[kind].most_common():
            lines.append(f"| {kind} | {result} | {count} |")
    lines += ["", *(f"- {said}" for said in figures.findings or ["Nothing went wrong."])]
    return "\n".join(lines) + "\n"


def _sample(sample: Sample | None) -> dict[str, Any] | None:
    if sample is None:
        return None
    return asdict(sample) | {"at_s": round(sample.at_s, 1)}


def _mib(size: float | None) -> str:
    return "–" if size is None else f"{size / 2**20:.0f} MiB"


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f} s"
