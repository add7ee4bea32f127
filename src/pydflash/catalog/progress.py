"""What a fetch reports while it runs. The catalogue knows no terminal; the command line draws it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["wait", "download", "unpack", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Bytes done of bytes in all (None: not known) in one phase of fetching one model."""

    phase: Phase
    done_bytes: int
    total_bytes: int | None


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report to nobody."""
