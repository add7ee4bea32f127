"""DraftStats: how the drafts of one sequence, or of all, fared. Host numbers only."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class DraftStats:
    """Counts of rounds."""

    rounds: int = 0
