"""Monitor: notices, once, that a drafter does not fit its target. It only speaks; the policy acts."""

import math
from collections.abc import Sequence

from pydflash.draft.base import DraftScores

ROUNDS = 64  # drafts seen before a word is said; then twice as many, and so on
HOPELESS = 0.05  # of first drafts accepted: noise
BROKEN = 0.15  # accepted, of what the drafter claimed


class Monitor:
    """Compares how often the drafter's first guess was drawn with how sure it was of it."""

    def __init__(self, drafter: str) -> None:
        """`drafter`: its name, for the message."""
        self._drafter = drafter
        self._needed = ROUNDS
        self._rounds = 0
        self._hits = 0
        self._claims = 0.0
        self._spoken = False

    def observe(self, scores: DraftScores, drawn: Sequence[int]) -> str | None:
        """Take in a draft and what the target drew after the root; a warning when it is time for one."""
        if self._spoken or not scores.tokens.size or not drawn:
            return None
        first = scores.logp[0] if scores.pair is None else scores.pair[0, 0]
        best = int(first.argmax())
        self._rounds += 1
        self._hits += int(scores.tokens[0, best]) == drawn[0]
        self._claims += math.exp(float(first[best]))
        if self._rounds < self._needed:
            return None
        text = self._verdict()
        if text is None:  # judge the next rounds by themselves, and harder to fool by luck
            self._needed *= 2
            self._rounds, self._hits, self._claims = 0, 0, 0.0
        self._spoken = text is not None
        return text

    def _verdict(self) -> str | None:
        rate, claim = self._hits / self._rounds, self._claims / self._rounds
        # Three standard deviations of luck below what was claimed, or it is not the drafter's fault.
        luck = 3.0 * math.sqrt(max(claim * (1.0 - claim), 0.01) / self._rounds)
        if rate >= min(max(BROKEN * claim, HOPELESS), claim - luck):
            return None
        return (
            f"the drafter {self._drafter} does not fit this model: of its last {self._rounds} first "
            f"guesses {rate:.0%} were right where it claimed {claim:.0%}; it costs time and changes no "
            "text. Check that it was made for this model, its quantisation and its chat template, or "
            "run with --no-speculation"
        )
