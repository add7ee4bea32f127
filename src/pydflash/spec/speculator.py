"""Speculator: a drafter and a policy as one proposer.

It decides how many tokens one pass may settle, never which: the target's own draws do.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from pydflash.device import Scarce
from pydflash.draft.base import Context, Drafter, DraftRow, DraftScores, Started
from pydflash.kernels.ops import Guesses, OpTable
from pydflash.kernels.upload import ints, upload
from pydflash.spec.calibration import LOW
from pydflash.spec.grown import Grown
from pydflash.spec.monitor import Monitor
from pydflash.spec.policy import Policy
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Outcome, Spent
from pydflash.spec.trace import RoundTrace

log = logging.getLogger(__name__)

CATCH_UP = 32
"""Positions that may wait until a drafter that is not asked takes them in: enough for one wide product."""


class Speculator:
    """Drafts, builds trees, and learns from what became of them.

    `on_round` is called for every row of every round, for those who want to watch.
    """

    def __init__(self, drafter: Drafter, policy: Policy, ops: OpTable | None = None) -> None:
        """`ops`: of the device that may grow trees by itself; None: they are grown here."""
        self.drafter = drafter
        self.policy = policy
        self._ops = ops
        most = min(drafter.slots, policy.settings.max_slots)
        captured = ops is not None and bool(drafter.taps)  # look-ups are no work of a device
        self._sizes = draft_sizes(most) if captured else tuple(range(1, most + 1))
        tau = policy.settings.tau
        self._tau = None if ops is None or tau is None else upload(np.array([tau]), ops.device)
        self.on_round: Callable[[RoundTrace], None] | None = None
        self._monitor = Monitor(drafter.name) if drafter.taps else None  # look-ups fit any model
        self._slots = 0
        self._scores: list[DraftScores] = []
        self._ahead: _Ahead | None = None

    @property
    def max_nodes(self) -> int:
        return self.policy.settings.max_nodes

    @property
    def taps(self) -> tuple[int, ...]:
        return self.drafter.taps

    def grown(self, rows: Sequence[DraftRow], limit: int) -> Grown | None:
        """Trees that `prepare` began to grow, if it was for these rows and they are small enough."""
        ahead = self._ahead
        if ahead is None or ahead.grown is None or not ahead.is_for(rows):
            return None
        grown = ahead.grown
        if grown.nodes > limit:
            return None
        self._ahead = None
        if any(row.fresh for row in rows):
            self.policy.hope_anew()
        self._slots = ahead.slots

        def on_read(made: list[Proposal]) -> None:
            self._scores = ahead.started.scores()
            roots = [row.tokens[-1] for row in rows]
            self.policy.grew(roots, self._scores, grown.nodes, _context(rows))

        grown.on_read = on_read
        return grown

    def propose(self, rows: Sequence[DraftRow], beside: int = 0) -> list[Proposal]:
        """A tree for each row, or the pending token alone where drafting would not pay."""
        roots = [row.tokens[-1] for row in rows]
        if any(row.fresh for row in rows):
            self.policy.hope_anew()
        ahead, self._ahead = self._ahead, None
        with Scarce() as memory:
            if ahead is not None and ahead.is_for(rows):
                self._slots, self._scores = ahead.slots, ahead.started.scores()
            else:
                self._slots = self._chosen_slots(rows, beside)
                if self._slots:
                    top_k = self.policy.settings.top_k
                    self._scores = self.drafter.score(rows, self._slots, top_k)
        if memory.ran_out:
            log.warning("no memory left to draft; this round goes without")
            self._slots = 0
        if not self._slots:
            self._scores = [DraftScores.nothing()] * len(rows)
            return [Proposal.root(root) for root in roots]
        return self.policy.trees(roots, self._scores, context=_context(rows), beside=beside)

    def prepare(self, rows: Sequence[DraftRow], beside: int = 0, *, grow: bool = True) -> None:
        """Start the next round's draft, if it can go on while the host does other things.

        How many slots it has is decided without the round that is just ending: that costs speed at most. But
        a probe waits until the round is known, which may have been a probe that failed.
        """
        self._ahead = None
        if not rows or self.policy.doubts:
            return
        slots = self._chosen_slots(rows, beside)
        if not slots:
            return
        with Scarce():  # without memory for it the next round tries again, and says so
            known = self._ops is not None and grow and not beside
            nodes = self.policy.nodes(len(rows), slots) if known else 0
            top_k = self.policy.settings.top_k
            started = self.drafter.start(rows, slots, top_k, guess=nodes > 1)
            if started is not None:
                grown = self._grow(started.guesses, nodes)
                self._ahead = _Ahead(rows, slots, started, grown)

    def settle(
        self, contexts: Sequence[Context], outcomes: Sequence[Outcome], spent: Spent
    ) -> None:
        """Take in what waits, and learn from the round."""
        behind = [c for c in contexts if c.num_pending >= CATCH_UP]
        if behind:
            with Scarce() as memory:
                self.drafter.catch_up(behind)
            if memory.ran_out:
                log.warning("no memory left for the drafter's context; it waits")
        if outcomes:
            self._learn(outcomes, spent)
        if self.on_round is not None:
            for scores, outcome in zip(self._scores, outcomes, strict=True):
                if outcome.drawn:
                    self.on_round(_trace(scores, outcome, spent))
        self._scores = []

    def _chosen_slots(self, rows: Sequence[DraftRow], beside: int) -> int:
        """How many slots to draft for these rows, which may be none."""
        wanted = self.policy.slots(len(rows), _context(rows), beside)
        return next((n for n in self._sizes if n >= wanted), self._sizes[-1]) if wanted else 0

    def _grow(self, guesses: Guesses | None, nodes: int) -> Grown | None:
        """Trees of `nodes` nodes from guesses on the device, there and at once."""
        if guesses is None or self._ops is None:
            return None
        s, device = self.policy.settings, self._ops.device
        if s.mode == "adaptive":
            guesses = self._calibrated(guesses)
        budgets = ints([nodes - 1] * len(guesses.roots), device)
        trees = self._ops.grow_trees(
            guesses, budgets, nodes, self.policy.candidates, s.chain_seed, self._tau
        )
        return Grown(trees)

    def _calibrated(self, guesses: Guesses) -> Guesses:
        """See `Calibration.apply`."""
        ops, learned = self._ops, self.policy.calibration
        assert ops is not None
        learned.update()
        shift = upload(learned.shift, ops.device)

        def mapped(logp: Tensor) -> Tensor:
            values = logp.flatten(2)
            totals = values.new_zeros(values.shape[:2])
            return ops.calibrate(values, totals, shift, LOW).view(2, *logp.shape)

        if guesses.pair is not None:
            return replace(guesses, pair=mapped(guesses.pair)[0])
        assert guesses.logp is not None
        on, off = mapped(guesses.logp)
        return replace(guesses, logp=on, off=off)

    def _learn(self, outcomes: Sequence[Outcome], spent: Spent) -> None:
        alone = not spent.prefill  # the times are the round's own
        context = _mean([o.position for o in outcomes])
        beside = spent.rows - sum(o.rows for o in outcomes)
        self.policy.observe(
            self._scores,
            [o.drawn for o in outcomes],
            rows=spent.rows,
            slots=self._slots,
            draft_s=spent.draft_s if alone else None,
            step_s=spent.step_s if alone else None,
            context=context,
            beside=beside,
        )
        share = len(outcomes) if alone else 0
        plain = self.policy.cost.step_s(len(outcomes) + beside, context)
        for scores, outcome in zip(self._scores, outcomes, strict=True):
            if not outcome.drawn:
                continue
            outcome.stats.add(
                outcome.proposal,
                len(outcome.drawn),
                drafted=self._slots > 0,
                draft_s=spent.draft_s / share if share else 0.0,
                step_s=spent.step_s / share if share else 0.0,
                reference_s=plain / share if share else 0.0,
            )
            warning = self._monitor and self._monitor.observe(scores, outcome.drawn)
            if warning:
                log.warning(warning)


def draft_sizes(slots: int) -> tuple[int, ...]:
    """How many slots are drafted where each number is captured as a graph of its own, up to `slots`: few, and
    more of them cost little there."""
    return tuple(sorted({n for n in (1, 3, (slots + 1) // 2, slots) if 0 < n <= slots}))


class _Ahead:
    """A draft that was started for rows as they were then: of these contexts after these tokens."""

    def __init__(
        self, rows: Sequence[DraftRow], slots: int, started: Started, grown: Grown | None
    ) -> None:
        self.slots = slots
        self.started = started
        self.grown = grown  # trees that the device grows from it
        self._rows = rows
        self._lengths = [len(row.tokens) for row in rows]  # the lists grow, and do nothing else

    def is_for(self, rows: Sequence[DraftRow]) -> bool:
        return len(rows) == len(self._rows) and all(
            row.tokens is mine.tokens and row.context is mine.context and len(row.tokens) == length
            for row, mine, length in zip(rows, self._rows, self._lengths, strict=True)
        )


def _context(rows: Sequence[DraftRow]) -> int:
    """Mean length of the texts."""
    return _mean([len(row.tokens) for row in rows])


def _mean(lengths: Sequence[int]) -> int:
    return sum(lengths) // len(lengths)


def _trace(scores: DraftScores, outcome: Outcome, spent: Spent) -> RoundTrace:
    nodes = outcome.proposal
    return RoundTrace(
        position=outcome.position,
        tokens=nodes.tokens,
        parents=nodes.parents,
        logp=tuple(_logp(scores, nodes, i) for i in range(len(nodes.tokens))),
        path=tuple(outcome.path),
        drawn=outcome.drawn[-1],
        draft_s=spent.draft_s,
        step_s=spent.step_s,
        rows=spent.rows,
    )


def _logp(scores: DraftScores, nodes: Proposal, node: int) -> float:
    """What the drafter gave a node after its parent."""
    if not node or not scores.tokens.size:  # the root, or a tree of a draft that turned out damaged
        return 0.0
    slot, parent = nodes.depth[node] - 1, nodes.parents[node]
    at = scores.tokens[slot].tolist().index(nodes.tokens[node])
    if scores.pair is None:
        return float(scores.logp[slot, at])
    before = scores.tokens[slot - 1].tolist().index(nodes.tokens[parent]) if slot else 0
    return float(scores.pair[slot, before, at])
