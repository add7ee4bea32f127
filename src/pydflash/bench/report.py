"""Report: figures of a run as JSON and as a table, with ratios against the peer."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydflash.errors import ConfigError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Samples:
    """Seconds of the same work done several times."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "min_s": self.best,
            "median_s": self.median,
            "seconds": [round(s, 7) for s in self.seconds],
        }


def ratio(ours: Samples, theirs: Samples) -> dict[str, float]:
    """Our time over theirs, best against best and median against median: below 1 we are faster."""
    return {"min": ours.best / theirs.best, "median": ours.median / theirs.median}


def save(path: Path, kind: str, body: dict[str, Any]) -> None:
    """Write a run as one JSON document."""
    document = {"schema": SCHEMA, "kind": kind, **body}
    write(path, json.dumps(document, indent=1) + "\n", "--json")


def write(path: Path, text: str, flag: str) -> None:
    """Write a file that the option `flag` asked for."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}") from None


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A `rich` table, figures to the right."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made
