"""Policy: whether a round drafts, how many slots, and which nodes are verified. Decides speed, never text.

Deterministic given what it is told; times are arguments. Where a device grows trees by itself a round is
`slots`, `nodes` -> (draft, trees) -> `grew` beside the step -> `observe`. Else it is
`slots` -> (draft) -> `trees` -> (step) -> `observe`; a plain round skips the middle.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydflash.draft.base import DraftScores
from pydflash.spec.calibration import Calibration
from pydflash.spec.cost import CostModel
from pydflash.spec.ddtree import NONE_LEFT, WIDE, Growth, build_tree
from pydflash.spec.proposal import Proposal

AHEAD = (1, 2, 4, 8, 16)  # nodes by which growth looks over the next edge of the cost
MEMORY = (
    0.12  # share of the latest drafted round in the expected gain, when a failed one costs DEAR
)
PATIENT = 0.01  # least share, when drafting is all but free
DEAR = 0.4  # plain steps
TRUTH = 0.03  # least share of the latest drafted round in what expectation got wrong
PACE = 0.03  # share of the latest round in the running rate
WIDTH = 0.25  # share of the latest round in how wide trees are that are sized before their scores are seen
REACH = 0.06  # share of the latest round in what each depth gave
ALLOWANCE = 0.02  # share of plain decoding that probes may cost
DEAREST = 0.7  # plain steps beyond which a failed probe does not put off the next
LEAST = 0.012  # what is left of it after probes that kept failing
HOPE = 0.15  # plain steps a row that drafting is believed to save in a new text, at least
FULL = 12  # every so many drafted rounds all slots are drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How trees are made. `adaptive` weighs every node (or, where a device grows them, sizes trees by what
    was worth it lately); `tree` and `chain` always draft to a budget."""

    mode: Literal["adaptive", "tree", "chain"] = "adaptive"
    max_slots: int = 15
    max_nodes: int = 48  # of one sequence's proposal, the root included
    max_rows: int = 64  # of all proposals of a round together
    budget: int = 22  # nodes besides the root in mode `tree`
    top_k: int = WIDE
    tau: float | None = None
    chain_seed: bool = False  # in mode `tree`: the best path first, whatever else is likelier
    temperature: float = 1.0


class Policy:
    """What speculation has learned about one engine: costs, calibration and whether it pays."""

    def __init__(self, settings: Settings, cost: CostModel) -> None:
        self.settings = settings
        self.cost = cost
        self.calibration = Calibration(max(settings.max_slots, 1))
        self._hope = 0.5  # running expected gain of a drafted round, in plain steps a row
        self._error = 0.0  # what it was too low by, in the end
        self._expected = 1.0  # tokens a row of the trees in the making
        self._drafted = 0  # rounds
        self._bank = 0.0  # plain steps that probes may lose
        self._stake = 0.5  # plain steps that a failed probe loses
        self._allowance = ALLOWANCE
        self._tokens = self._seconds = (
            1.0  # running tokens a row and seconds in plain steps, a round
        )
        self._wide = 0.0  # running nodes a row that were worth it; 0: not known
        self._reach = [0.5] * settings.max_slots  # expected tokens a row that each depth gave

    @property
    def speed(self) -> float:
        """The running rate, in multiples of plain decoding."""
        return self._tokens / self._seconds

    @property
    def gain(self) -> float:
        """Plain steps that a drafted round is believed to save."""
        return self._hope + self._error

    @property
    def doubts(self) -> bool:
        """Is drafting believed not to pay? Then a drafted round is a probe, and its loss has to be earned."""
        return self.settings.mode == "adaptive" and self.gain <= 0.0

    @property
    def candidates(self) -> int:
        """Of a slot, that trees may hold."""
        return 1 if self.settings.mode == "chain" else self.settings.top_k

    def hope_anew(self) -> None:
        """A new text begins: what did not pay for the last one may pay for this."""
        self._hope = max(self._hope, HOPE)
        self._error = max(self._error, 0.0)
        self._allowance = ALLOWANCE

    def slots(self, sequences: int = 1, context: int = 0, beside: int = 0) -> int:
        """Slots to draft in the next round; 0 makes it a plain one. `beside`: the step's other rows."""
        most = self.settings.max_slots
        if self.settings.mode != "adaptive" or not most:
            return most
        if self.doubts and self._bank < self._stake:
            return 0
        if self._drafted % FULL == 0:
            return most
        return self._useful(sequences, context, beside)

    def nodes(self, sequences: int, slots: int) -> int:
        """Nodes of each tree, the root included, where that is known before the scores are; else 0."""
        s = self.settings
        if s.temperature != 1.0:
            return 0
        if s.mode != "adaptive":
            return 1 + self._budget(sequences, slots, s.max_nodes)
        # The host looks first until it knows, and now and then: what is worth it may have become more.
        if not self._wide or self._drafted % FULL == 0:
            return 0
        most = 1 + s.top_k if slots == 1 else s.max_nodes
        return min(round(self._wide), most, s.max_nodes, s.max_rows // sequences)

    def trees(
        self,
        roots: Sequence[int],
        scores: Sequence[DraftScores],
        limits: Sequence[int] | None = None,
        context: int = 0,
        beside: int = 0,
    ) -> list[Proposal]:
        """A proposal for each row. `limits`: the most nodes of each, the root included. `beside`: rows
        that the step has whatever is drafted."""
        s = self.settings
        limits = [min(s.max_nodes, x) for x in limits or [s.max_nodes] * len(roots)]
        if s.mode == "adaptive":
            growths, kept = self._grow(roots, scores, limits, context, beside)
            return [g.proposal(n) for g, n in zip(growths, kept, strict=True)]
        out = []
        for root, given, limit in zip(roots, scores, limits, strict=True):
            tree = build_tree(
                root,
                given,
                self._budget(len(roots), given.slots, limit),
                top_k=self.candidates,
                tau=s.tau,
                chain_seed=s.chain_seed,
                temperature=s.temperature,
            )
            out.append(tree)
        return out

    def grew(
        self, roots: Sequence[int], scores: Sequence[DraftScores], nodes: int, context: int = 0
    ) -> None:
        """Trees of `nodes` nodes were made of these scores, elsewhere: see what they are worth, and what
        other sizes would have been."""
        if self.settings.mode == "adaptive":
            limits = [self.settings.max_nodes] * len(roots)
            self._grow(roots, scores, limits, context, made=nodes)

    def observe(
        self,
        scores: Sequence[DraftScores],
        drawn: Sequence[Sequence[int]],
        *,
        rows: int,
        slots: int = 0,
        draft_s: float | None = None,
        step_s: float | None = None,
        context: int = 0,
        beside: int = 0,
    ) -> None:
        """Learn from a round of `rows` nodes: each sequence's scores and the tokens it drew.

        `beside` of the rows are not the drafted sequences': plain decoding would have had them, too.

        `slots` 0 and no scores for a plain round. Times that hold other work (a prompt's chunk, a first
        compilation) are None.
        """
        sequences = len(drawn)
        if not sequences:
            return
        if step_s is not None:
            self.cost.observe_step(rows, context, step_s)
        if slots and draft_s is not None:
            self.cost.observe_draft(slots, sequences, draft_s)
        better = 0.0
        for given, tokens in zip(scores, drawn, strict=False):
            better += max(self.calibration.observe(given, tokens), 0.0) / sequences
        self.calibration.update()
        plain = self.cost.step_s(sequences + beside, context)
        if plain <= 0.0:
            return
        spent = self.cost.draft_s(slots, sequences) + self.cost.step_s(rows, context)
        tokens_a_row = sum(map(len, drawn)) / sequences
        self._account(tokens_a_row, spent / plain, better if slots else None)

    def _budget(self, sequences: int, slots: int, limit: int) -> int:
        """Nodes besides the root of a tree of fixed size. `limit`: with the root."""
        s = self.settings
        room = max(s.max_rows - sequences, 0) // max(sequences, 1)
        return min(slots if s.mode == "chain" else s.budget, limit - 1, room)

    def _account(self, tokens: float, steps: float, better: float | None) -> None:
        """`tokens` a row for the time of `steps` plain steps; `better` is None for a plain round.

        It says how far the drafter surprised in its first slot: that buys the next probe, since a tree
        cut to its root cannot show that the text has become predictable.
        """
        self._tokens += PACE * (tokens - self._tokens)
        self._seconds += PACE * (steps - self._seconds)
        if better is None:
            self._bank = min(self._bank + self._allowance, 2 * self._stake)
            return
        self._drafted += 1
        saved = tokens - steps
        probe = self.gain <= 0.0
        memory = min(max(MEMORY * self._stake / DEAR, PATIENT, 1.0 / (self._drafted + 8.0)), MEMORY)
        self._hope += memory * (self._expected - steps - self._hope)
        share = max(1.0 / (self._drafted + 12.0), TRUTH)
        self._error += share * (tokens - self._expected - self._error)
        credit = saved + self._stake * better
        self._bank = min(max(self._bank + credit, -0.5 * self._stake), 2 * self._stake)
        if saved >= 0.0:
            self._allowance = ALLOWANCE
            return
        loss = min(-saved, DEAREST)
        if probe or loss < self._stake:
            self._stake += 0.4 * (loss - self._stake)
        if probe:
            self._allowance = max(0.85 * self._allowance, LEAST)

    def _useful(self, sequences: int, context: int, beside: int) -> int:
        """As many slots as gave more than they cost, and two to see further."""
        plain = self.cost.step_s(sequences + beside, context)
        if plain <= 0.0 or not self.cost.draft.known:
            return self.settings.max_slots
        worth = max(self.speed, 1.0) / plain
        cost = self.cost.drafts(self.settings.max_slots, sequences)
        best, at, value = 0.0, 1, 0.0
        for slot, tokens in enumerate(self._reach):
            value += tokens - worth * (cost[slot + 1] - (cost[slot] if slot else cost[1]))
            if value > best:
                best, at = value, slot + 1
        return min(at + 2, self.settings.max_slots)

    def _grow(
        self,
        roots: Sequence[int],
        scores: Sequence[DraftScores],
        limits: Sequence[int],
        context: int,
        beside: int = 0,
        made: int = 0,
    ) -> tuple[list[Growth], list[int]]:
        """The growth of each row, and how many of its nodes to keep.

        The likeliest node of any row is taken while it is worth its time at the running rate.

        The last counts are those of the best sum of expected tokens less seconds at that rate; or each is
        `made`, if that is what was made already.
        """
        growths = [self._start(root, given) for root, given in zip(roots, scores, strict=True)]
        rows = len(roots)
        # Seconds by the drafted sequences' rows: the others are there in any case.
        cost = self.cost.steps(max(self.settings.max_rows, rows) + beside, context)[beside:]
        plain = cost[rows]
        worth = rows * max(self.speed, 1.0) / plain if plain > 0.0 else 0.0
        heap = [(-g.peek, r) for r, g in enumerate(growths) if g.peek > NONE_LEFT and limits[r] > 1]
        heapq.heapify(heap)
        taken: list[int] = []  # the row of every node, in the order of growth
        gains: list[float] = []
        expected, best, count = 0.0, 0.0, 0
        while heap and rows + len(taken) < len(cost) - 1 and len(taken) - count < AHEAD[-1]:
            _, r = heapq.heappop(heap)
            growth = growths[r]
            gains.append(math.exp(growth.take()))
            expected += gains[-1]
            taken.append(r)
            value = expected - worth * (cost[rows + len(taken)] - plain)
            if value > best:
                best, count = value, len(taken)
            elif not _may_gain(best - value, gains[-1], worth, cost[rows + len(taken) :]):
                break
            if growth.peek > NONE_LEFT and len(growth) < limits[r]:
                heapq.heappush(heap, (-growth.peek, r))
        kept = [1] * rows
        for r in taken[:count]:
            kept[r] += 1
        wide = sum(kept) / max(rows, 1)
        self._wide += WIDTH * (wide - self._wide) if self._wide else wide
        if made:
            kept = [g.grown(made) for g in growths]
        self._expected = 1.0 + self._note(growths, kept)
        return growths, kept

    def _start(self, root: int, given: DraftScores) -> Growth:
        scores, off = self.calibration.apply(given)
        return Growth(root, scores, top_k=self.settings.top_k, off=off)

    def _note(self, growths: Sequence[Growth], kept: Sequence[int]) -> float:
        """Remember what each depth was expected to give, as far as it was drafted. Tokens a row of all."""
        deepest = max((g.slots for g in growths), default=0)
        gave = [0.0] * min(deepest, len(self._reach))
        for growth, count in zip(growths, kept, strict=True):
            for node in range(1, count):
                gave[growth.depth(node) - 1] += math.exp(growth.weights[node]) / len(growths)
        for slot, tokens in enumerate(gave):
            self._reach[slot] += REACH * (tokens - self._reach[slot])
        return sum(gave)


def _may_gain(missing: float, tokens: float, worth: float, cost: Sequence[float]) -> bool:
    """Whether more nodes, each of at most `tokens`, may make up for `missing`. cost[k] seconds after k."""
    return any(k < len(cost) and k * tokens - worth * (cost[k] - cost[0]) > missing for k in AHEAD)
