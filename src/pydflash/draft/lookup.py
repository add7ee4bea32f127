"""PromptLookup: drafts by finding earlier occurrences of a text's end in the text itself.

No network and no tensors. What followed the longest and latest earlier matches becomes the candidates;
where matches disagree, a pair table keeps each continuation's own order. Its log-probabilities come from
match lengths and counts: a first guess, which `spec.calibration` corrects.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from pydflash.draft.base import Context, DraftRow, DraftScores

GRAMS = (6, 4, 3, 2)  # lengths that are indexed, longest first
KEPT = 6  # latest places kept of each n-gram
LONGEST = 24  # tokens by which a match is compared backwards
SEQUENCES = 16  # indices kept
TOKENS = 65536  # tokens an index spans; beyond, it starts again from the later half

_IMPOSSIBLE = -math.inf


class PromptLookup:
    """An n-gram drafter: one incremental index a sequence, told apart by the identity of its tokens."""

    name = "lookup"
    taps: tuple[int, ...] = ()

    def __init__(self, slots: int = 12) -> None:
        self.slots = slots
        self._indices: OrderedDict[int, _Index] = OrderedDict()

    def catch_up(self, contexts: Sequence[Context]) -> None:
        """Nothing waits: the tokens are all it reads."""

    def score(self, rows: Sequence[DraftRow], slots: int, top_k: int) -> list[DraftScores]:
        """Continuations of earlier matches; nothing for a text whose end is new."""
        slots = min(slots, self.slots)
        return [self._score(row.tokens, slots, top_k) for row in rows]

    def start(
        self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
    ) -> None:
        """Looking up is the host's own work."""

    def _score(self, tokens: Sequence[int], slots: int, top_k: int) -> DraftScores:
        index = self._index(tokens)
        matches = index.matches(tokens)
        if not matches or slots < 1 or top_k < 1:
            return DraftScores.nothing()
        return _scores(tokens, matches, slots, top_k)

    def _index(self, tokens: Sequence[int]) -> "_Index":
        """The tokens' index, brought up to date; a new one where they are not what it has seen."""
        key = id(tokens)
        index = self._indices.pop(key, None)
        if index is None or not index.continues(tokens):
            index = _Index(max(0, len(tokens) - TOKENS))
        elif len(tokens) - index.start > TOKENS:
            index = _Index(len(tokens) - TOKENS // 2)
        index.extend(tokens)
        self._indices[key] = index
        while len(self._indices) > SEQUENCES:
            self._indices.popitem(last=False)
        return index


class _Index:
    """Where each n-gram of a token list ended, latest last. Covers tokens [start, end)."""

    def __init__(self, start: int) -> None:
        self.start = self._end = start
        self._tail: list[int] = []  # the last tokens seen, to notice another list in the same place
        self._places: dict[tuple[int, ...], list[int]] = {}

    def continues(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` begin with what was indexed, judged by its last tokens."""
        end = self._end
        return len(tokens) >= end and list(tokens[end - len(self._tail) : end]) == self._tail

    def extend(self, tokens: Sequence[int]) -> None:
        places = self._places
        for end in range(self._end + 1, len(tokens) + 1):
            for n in GRAMS:
                if end - n < self.start:
                    continue
                at = places.setdefault(tuple(tokens[end - n : end]), [])
                at.append(end)
                if len(at) > KEPT:
                    del at[0]
        self._end = len(tokens)
        self._tail = list(tokens[max(self.start, self._end - LONGEST) :])

    def matches(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """(length, end) of earlier occurrences of the text's end: longest first, then latest first."""
        n_tokens = len(tokens)
        found: dict[int, int] = {}
        for n in GRAMS:
            if n > n_tokens:
                continue
            for end in self._places.get(tuple(tokens[n_tokens - n :]), ()):
                if end < n_tokens and end not in found:
                    found[end] = _length(tokens, end, n)
        return sorted(((n, end) for end, n in found.items()), reverse=True)[: 2 * KEPT]


def _length(tokens: Sequence[int], end: int, known: int) -> int:
    """By how many tokens the text before `end` equals the text's end; `known` of them are."""
    n = known
    last = len(tokens)
    while n < LONGEST and n < end and tokens[end - n - 1] == tokens[last - n - 1]:
        n += 1
    return n


def _scores(
    tokens: Sequence[int], matches: list[tuple[int, int]], slots: int, top_k: int
) -> DraftScores:
    """Candidates are what the matches go on with, weighted by their lengths; 0 heads the best path."""
    followed = [_follow(tokens, end, slots) for _, end in matches]
    weights = [3.0 ** min(n, 8) * (1.0 + 0.5 / (1 + i)) for i, (n, _) in enumerate(matches)]
    table: list[list[int]] = []
    rows: list[list[list[float]]] = []  # [slot][candidate before][candidate]
    before = [tokens[-1]]
    for slot in range(slots):
        below: list[tuple[dict[int, float], float]] = []
        for token in before:
            on = [m for m, path in enumerate(followed) if not slot or path[slot - 1] == token]
            mass: dict[int, float] = {}
            for m in on:
                mass[followed[m][slot]] = mass.get(followed[m][slot], 0.0) + weights[m]
            hit = _sure(max(matches[m][0] for m in on) + slot)
            below.append((mass, hit / sum(mass.values())))
        here = _ranked([mass for mass, _ in below])[:top_k]
        rows.append(
            [
                [math.log(mass[c] * unit) if c in mass else _IMPOSSIBLE for c in here]
                for mass, unit in below
            ]
        )
        table.append(here)
        before = here
    return _packed(table, rows)


def _ranked(masses: list[dict[int, float]]) -> list[int]:
    """What may follow the best candidate, heaviest first, then what only follows the others."""
    everything: dict[int, float] = {}
    for mass in masses:
        for token, weight in mass.items():
            everything[token] = everything.get(token, 0.0) + weight
    first = masses[0]
    return sorted(everything, key=lambda t: (-first.get(t, 0.0), -everything[t]))


def _packed(table: list[list[int]], rows: list[list[list[float]]]) -> DraftScores:
    """Scores of one width: missing candidates are ids that the pair table makes impossible."""
    width = max(len(here) for here in table)
    tokens = np.array([here + _others(here, width - len(here)) for here in table], np.int32)
    pair = np.full((len(table), width, width), _IMPOSSIBLE, np.float32)
    for slot, below in enumerate(rows):
        for i, logps in enumerate(below):
            pair[slot, i, : len(logps)] = logps
    pair[0] = pair[0, :1]  # every row of slot 0 follows the anchor
    return DraftScores(tokens=tokens, logp=np.ascontiguousarray(pair[:, 0]), pair=pair)


def _follow(tokens: Sequence[int], end: int, slots: int) -> list[int]:
    """What came after `end`. A match that reaches the text's end goes round: it is a period."""
    period = len(tokens) - end
    return [tokens[end + s % period] for s in range(slots)]


def _sure(length: int) -> float:
    """How often a match of `length` tokens goes on as before: a prior, not a promise."""
    return 0.95 - 0.85 * 0.75 ** (length - 1)


def _others(here: list[int], count: int) -> list[int]:
    """`count` ids that are not in `here`: they fill a slot's table and are impossible by the pair table."""
    out: list[int] = []
    token = 0
    while len(out) < count:
        if token not in here:
            out.append(token)
        token += 1
    return out
