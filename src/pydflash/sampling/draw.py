"""Draw: one token, drawn. Host numbers only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A token, and when asked for its natural-log probability and the best (token id, log-probability)."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
