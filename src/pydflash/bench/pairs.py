"""Pairs: the same prompt answered plainly, with drafts and by a peer, and what many pairs say together.

Times are medians over prompts, and ratios are medians of each prompt's own ratio: both sides of a ratio
then saw the same text and the same mood of the machine. Acceptance has no moods: its counts are pooled.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from pydflash.spec.stats import DraftStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer. `decode_s` are the seconds after the first token, which the prompt's own pass gives.

    `steps` are the tokens drawn in that time: all but the first, and the end of text that `tokens` lacks.
    """

    tokens: tuple[int, ...]
    text: str
    steps: int
    prefill_s: float
    decode_s: float
    drafting: DraftStats | None = None

    def to_json(self) -> dict[str, float]:
        return {"prefill_s": round(self.prefill_s, 6), "decode_s": round(self.decode_s, 6)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prompt and its answers. `draft` is None without a drafter, `peer` without a peer."""

    id: str
    prompt_tokens: int
    plain: Answered
    draft: Answered | None = None
    peer: Answered | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a plain step."""
        return self.plain.decode_s / self.plain.steps

    @property
    def differs_at(self) -> int | None:
        """The first token at which drafts changed the answer. None, as it has to be, if there is none."""
        if self.draft is None or self.draft.tokens == self.plain.tokens:
            return None
        both = zip_longest(self.plain.tokens, self.draft.tokens)
        return next(i for i, (a, b) in enumerate(both) if a != b)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "id": self.id,
            "prompt_tokens": self.prompt_tokens,
            "tokens": len(self.plain.tokens),
            "plain": self.plain.to_json(),
        }
        if self.draft is not None:
            out["draft"] = self.draft.to_json()
            if self.draft.drafting is not None:
                out["draft"] |= {"rounds": self.draft.drafting.rounds}
            out["differs_at"] = self.differs_at
        if self.peer is not None:
            out["peer"] = self.peer.to_json()
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """What the pairs of one task (or of all) say. A figure is None where nothing was measured for it.

    Pairs whose answer is one token have no decoding in them and count for nothing but exactness.
    """

    task: str
    pairs: tuple[Pair, ...]

    @property
    def plain_tok_s(self) -> float | None:
        return self._rate(lambda pair: pair.plain)

    @property
    def draft_tok_s(self) -> float | None:
        return self._rate(lambda pair: pair.draft)

    @property
    def peer_tok_s(self) -> float | None:
        return self._rate(lambda pair: pair.peer)

    @property
    def speedup(self) -> float | None:
        """Plain decoding's time over that with drafts, prompt by prompt."""
        return _median(self.speedups)

    @property
    def speedups(self) -> list[float]:
        return self._ratios(lambda pair: pair.plain, lambda pair: pair.draft)

    @property
    def over_peer(self) -> float | None:
        """The peer's time over ours: with drafts if there are any, else plain."""
        return _median(self._ratios(lambda pair: pair.peer, lambda pair: pair.draft or pair.plain))

    @property
    def plain_over_peer(self) -> float | None:
        return _median(self._ratios(lambda pair: pair.peer, lambda pair: pair.plain))

    @property
    def drafting(self) -> DraftStats | None:
        """All rounds together."""
        pooled = DraftStats()
        for _, drafting in self._drafted():
            pooled.merge(drafting)
        return pooled if pooled.rounds else None

    @property
    def acceptance(self) -> float | None:
        """Tokens a round, the round's own draw included: 1 is plain decoding."""
        drafting = self.drafting
        return drafting.acceptance_length if drafting else None

    @property
    def by_depth(self) -> list[float]:
        """Of the rounds that offered a node at depth 1, 2, ...: the share that accepted one."""
        drafting = self.drafting
        return drafting.depth_rates if drafting else []

    @property
    def step_s(self) -> float | None:
        """Seconds of a plain step, everything in it."""
        return _median(pair.step_s for pair in self._long())

    @property
    def round_s(self) -> float | None:
        """Seconds of a round: drafting, and the step that verifies."""
        return _median(_round_s(drafting) for _, drafting in self._drafted())

    @property
    def round_cost(self) -> float | None:
        """A round in plain steps."""
        return _median(_round_s(drafting) / pair.step_s for pair, drafting in self._drafted())

    @property
    def expected(self) -> float | None:
        """The speedup that acceptance and round cost promise; what is observed below it, nothing explains."""
        return _median(
            drafting.acceptance_length * pair.step_s / _round_s(drafting)
            for pair, drafting in self._drafted()
        )

    @property
    def draft_share(self) -> float | None:
        """Drafting's share of decoding time."""
        return self._share(lambda drafting: drafting.draft_s)

    @property
    def other_share(self) -> float | None:
        """The share of decoding time that is neither drafting nor the verifying step."""
        found = self._share(lambda drafting: drafting.draft_s + drafting.step_s)
        return None if found is None else 1.0 - found

    @property
    def mismatches(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.differs_at is not None]

    @property
    def identical(self) -> bool | None:
        """Whether drafts changed no token of any answer."""
        return not self.mismatches if any(pair.draft for pair in self.pairs) else None

    def to_json(self) -> dict[str, Any]:
        drafting = self.drafting
        return {
            "task": self.task,
            "prompts": len(self.pairs),
            "tokens": sum(len(pair.plain.tokens) for pair in self.pairs),
            "plain_tok_s": self.plain_tok_s,
            "draft_tok_s": self.draft_tok_s,
            "peer_tok_s": self.peer_tok_s,
            "speedup": self.speedup,
            "speedup_quartiles": _quartiles(self.speedups),
            "expected_speedup": self.expected,
            "over_peer": self.over_peer,
            "plain_over_peer": self.plain_over_peer,
            "acceptance_length": self.acceptance,
            "acceptance_by_depth": self.by_depth,
            "rounds": drafting.rounds if drafting else None,
            "plain_rounds": drafting.plain_rounds if drafting else None,
            "nodes_a_round": drafting.nodes / drafting.rounds if drafting else None,
            "step_s": self.step_s,
            "round_s": self.round_s,
            "round_cost": self.round_cost,
            "draft_share": self.draft_share,
            "other_share": self.other_share,
            "identical": self.identical,
        }

    def _long(self) -> Iterator[Pair]:
        return (pair for pair in self.pairs if pair.plain.steps > 0 and pair.plain.decode_s > 0)

    def _drafted(self) -> Iterator[tuple[Pair, DraftStats]]:
        """Pairs with rounds whose time is known, and those rounds."""
        for pair in self._long():
            drafting = pair.draft.drafting if pair.draft is not None else None
            if drafting is not None and drafting.rounds and _round_s(drafting) > 0:
                yield pair, drafting

    def _rate(self, side: Callable[[Pair], Answered | None]) -> float | None:
        found = (side(pair) for pair in self._long())
        return _median(a.steps / a.decode_s for a in found if a is not None and a.decode_s > 0)

    def _ratios(
        self, slow: Callable[[Pair], Answered | None], fast: Callable[[Pair], Answered | None]
    ) -> list[float]:
        both = ((slow(pair), fast(pair)) for pair in self._long())
        return [a.decode_s / b.decode_s for a, b in both if a and b and b.decode_s > 0]

    def _share(self, part: Callable[[DraftStats], float]) -> float | None:
        return _median(
            part(drafting) / pair.draft.decode_s
            for pair, drafting in self._drafted()
            if pair.draft is not None and pair.draft.decode_s > 0
        )


def _round_s(drafting: DraftStats) -> float:
    return (drafting.draft_s + drafting.step_s) / drafting.rounds


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _quartiles(values: list[float]) -> list[float] | None:
    if len(values) < 2:
        return None
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [first, third]
