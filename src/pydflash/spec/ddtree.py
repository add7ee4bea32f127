"""DDTree: the best draft tree for a drafter's scores, grown best first. Host numbers only.

A node's weight is the logarithm of the probability that the target walks through it: the sum of its
path's conditional log-probabilities. Weights never increase with depth, so the n heaviest prefixes are a
tree, and popping a heap yields exactly them; the first m of n nodes are the tree of m nodes.
Source: DDTree (arXiv 2604.12989) and its reference code; the chain seed and tau are the seeds' own.
"""

import heapq
import math
from dataclasses import replace

import numpy as np

from pydflash.draft.base import F32, DraftScores
from pydflash.errors import ConfigError
from pydflash.spec.proposal import Proposal

WIDE = 8  # candidates of a slot, unless the budget is a mere chain
NONE_LEFT = -math.inf

_Row = tuple[list[int], list[float]]
"""Candidates below one parent and their log-probabilities, best first."""


class Growth:
    """A tree that grows by its best next node: `peek` is that node's weight, `take` adds it.

    Node 0 is the root. `off`, f32 [S, K], replaces `scores.logp` below parents that are not on the path
    of best candidates, where marginals say less; it is not consulted when there is `scores.pair`.
    """

    __slots__ = (
        "_depth",
        "_heap",
        "_in_order",
        "_memo",
        "_off",
        "_on",
        "_pair",
        "_parents",
        "_serial",
        "_table",
        "_tokens",
        "_top_k",
        "slots",
        "weights",
    )

    def __init__(
        self,
        root_token: int,
        scores: DraftScores,
        *,
        top_k: int = WIDE,
        off: F32 | None = None,
        chain: int = 0,
        floor: float = NONE_LEFT,
    ) -> None:
        """Start with the best path of `chain` nodes, cut where its weight falls below `floor`."""
        self.slots = scores.slots
        self._top_k = top_k
        self._pair = scores.pair
        self._table: list[list[int]] = scores.tokens.tolist()
        self._on: list[list[float]] = scores.logp[:, :top_k].tolist()
        self._off: list[list[float]] = self._on if off is None else off[:, :top_k].tolist()
        self._in_order = list(range(top_k))  # marginals come best first
        self._memo: dict[tuple[int, int], _Row] = {}
        self.weights = [0.0]
        self._tokens, self._parents, self._depth = [root_token], [-1], [0]
        # (-weight, serial, parent, slot, candidates, place among them, whether on the best path)
        self._heap: list[tuple[float, int, int, int, _Row, int, bool]] = []
        self._serial = 0
        self._seed(min(chain, self.slots), floor)

    def __len__(self) -> int:
        """Nodes so far, the root included."""
        return len(self._tokens)

    @property
    def peek(self) -> float:
        """The next node's weight; minus infinity when no candidate is left."""
        return -self._heap[0][0] if self._heap else NONE_LEFT

    @property
    def peek_depth(self) -> int:
        """The next node's depth. There must be one."""
        return self._heap[0][3] + 1

    def take(self) -> float:
        """Add the next node and return its weight. There must be one."""
        negative, _, parent, slot, row, at, on = heapq.heappop(self._heap)
        self._add(-negative, parent, slot, row, at, on)
        self._push_child(len(self._tokens) - 1, slot + 1, row[0][at], on and at == 0)
        return -negative

    def grown(self, count: int) -> int:
        """Have `count` nodes, or as many as there can be; how many there are of them."""
        while len(self) < count and self.peek > NONE_LEFT:
            self.take()
        return min(len(self), count)

    def depth(self, node: int) -> int:
        return self._depth[node]

    def proposal(self, count: int | None = None) -> Proposal:
        """The first `count` nodes, root included; all of them by default."""
        return Proposal(
            tuple(self._tokens[:count]), tuple(self._parents[:count]), tuple(self._depth[:count])
        )

    def _seed(self, chain: int, floor: float) -> None:
        candidate = 0
        for slot in range(chain):
            row = self._row(slot, candidate, True)
            weight = self.weights[slot] + row[1][0] if row[1] else NONE_LEFT
            if weight == NONE_LEFT or weight < floor:
                break
            self._add(weight, slot, slot, row, 0, True)
            candidate = row[0][0]  # the best
        last = len(self._tokens) - 1
        self._push_child(last, last, candidate, True)

    def _add(self, weight: float, parent: int, slot: int, row: _Row, at: int, on: bool) -> None:
        candidates, logps = row
        self._tokens.append(self._table[slot][candidates[at]])
        self._parents.append(parent)
        self._depth.append(slot + 1)
        self.weights.append(weight)
        if at + 1 < len(logps):
            self._push(weight - logps[at] + logps[at + 1], parent, slot, row, at + 1, on)

    def _push_child(self, node: int, slot: int, candidate: int, on: bool) -> None:
        if slot < self.slots and (row := self._row(slot, candidate, on))[1]:
            self._push(self.weights[node] + row[1][0], node, slot, row, 0, on)

    def _push(self, weight: float, parent: int, slot: int, row: _Row, at: int, on: bool) -> None:
        if weight > NONE_LEFT:
            self._serial += 1
            heapq.heappush(self._heap, (-weight, self._serial, parent, slot, row, at, on))

    def _row(self, slot: int, candidate: int, on: bool) -> _Row:
        """What may stand in `slot` below a parent that is `candidate` of the slot before."""
        if self._pair is None:
            return self._in_order, (self._on if on else self._off)[slot]
        row = self._memo.get((slot, candidate))
        if row is None:
            logps: list[float] = self._pair[slot, candidate].tolist()
            order = sorted(range(len(logps)), key=logps.__getitem__, reverse=True)[: self._top_k]
            row = self._memo[slot, candidate] = order, [logps[c] for c in order]
        return row


def build_tree(
    root_token: int,
    scores: DraftScores,
    budget: int,
    *,
    top_k: int | None = None,
    tau: float | None = None,
    chain_seed: bool = True,
    temperature: float = 1.0,
) -> Proposal:
    """The tree of `budget` nodes besides the root; the root alone where there is nothing to offer.

    `top_k` candidates of a slot: by default 8 when the budget exceeds the slots, else a chain. `tau`
    drops paths lighter than the best first node by more than it. `temperature` reshapes the scores.
    Raises ConfigError for a top_k below 1 or a temperature that is not positive.
    """
    if top_k is None:
        top_k = WIDE if budget > scores.slots else 1
    if top_k < 1 or not temperature > 0:
        raise ConfigError(
            f"a draft tree of top-k {top_k} at temperature {temperature}; "
            "give one candidate or more and a positive temperature"
        )
    if budget <= 0 or not scores.tokens.size:
        return Proposal.root(root_token)
    scores = tempered(scores, temperature)
    best = scores.logp[0, 0] if scores.pair is None else scores.pair[0, 0].max()
    floor = NONE_LEFT if tau is None else float(best) - max(tau, 0.0)
    chain = budget if chain_seed else 0
    growth = Growth(root_token, scores, top_k=top_k, chain=chain, floor=floor)
    while len(growth) <= budget and growth.peek > NONE_LEFT and growth.peek >= floor:
        growth.take()
    return growth.proposal()


def tempered(scores: DraftScores, temperature: float) -> DraftScores:
    """The scores as if the drafter's logits had been divided by `temperature`.

    Tokens beyond the candidates are unknown; they count as one token that holds the remaining mass.
    """
    if temperature == 1.0:
        return scores
    pair = None if scores.pair is None else _temper(scores.pair, temperature)
    return replace(scores, logp=_temper(scores.logp, temperature), pair=pair)


def _temper(logp: F32, temperature: float) -> F32:
    rest = np.maximum(1.0 - np.exp(logp).sum(-1, keepdims=True), 0.0)
    with np.errstate(divide="ignore"):
        every = np.concatenate([logp, np.log(rest)], -1) / temperature
    top = every.max(-1, keepdims=True)
    total = top + np.log(np.exp(every - top).sum(-1, keepdims=True))
    out: F32 = (every[..., :-1] - total).astype(np.float32)
    return out
