"""A synthetic decoding: a drafter with a known law, a target that follows it, and what rounds cost.

Tokens of slot s are 100 * s + candidate; the target's draw at any accepted node is a candidate by the
true probabilities, or OTHER.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pydflash.draft.base import DraftScores
from pydflash.spec.cost import CostModel
from pydflash.spec.policy import Policy, Settings
from pydflash.spec.proposal import Proposal

OTHER = 99_999
K = 8
STEP_MS = {1: 10.0, 2: 11.8, 4: 14.0, 8: 23.0, 16: 42.0, 64: 160.0}


def step_s(rows: int) -> float:
    """The measured steps of a small model on two cores, straight lines between them."""
    return float(np.interp(rows, list(STEP_MS), list(STEP_MS.values()))) / 1e3


def draft_s(slots: int, sequences: int = 1) -> float:
    return (2.5 + 0.1 * slots * sequences) / 1e3 if slots else 0.0


def cost_model() -> CostModel:
    """As profiled at load."""
    cost = CostModel()
    cost.profile(
        [(n, 0, step_s(n)) for n in (1, 2, 4, 8, 16, 32)],
        [(s, 1, draft_s(s)) for s in (1, 7, 15)],
    )
    return cost


@dataclass(frozen=True, kw_only=True)
class Regime:
    """What text is like: `level` sets how sure the drafter is, `honest` how right it is when sure.

    Claims are softmaxes of noise with a winner of mean log-odds `level`; the true probabilities are the
    claims' powers by `honest`, times `truth`, times `off` below nodes off the best path.
    """

    level: float
    spread: float = 1.5
    honest: float = 1.0
    truth: float = 1.0
    off: float = 0.4


GOOD = Regime(level=3.0)
FAIR = Regime(level=1.2)
POOR = Regime(level=-0.5)
CODE = Regime(level=5.0)
USELESS = Regime(level=3.0, truth=0.0)
BOASTFUL = Regime(level=3.5, honest=1.5, truth=0.5)
SHY = Regime(level=0.3, honest=0.35)


@dataclass
class Decoding:
    """Runs a policy against a regime; `tokens` and `seconds` add up."""

    policy: Policy
    sequences: int = 1
    noise: float = 0.05
    seed: int = 0
    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    plain_rounds: int = 0
    widths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = np.random.default_rng(self.seed)

    def run(self, regime: Regime | Callable[[int], Regime], tokens: int) -> float:
        """Decode `tokens` more tokens; the speed over plain decoding."""
        before, start = self.tokens, self.seconds
        while self.tokens < before + tokens:
            self._round(regime if isinstance(regime, Regime) else regime(self.tokens))
        rate = (self.tokens - before) / (self.seconds - start)
        return rate * step_s(self.sequences) / self.sequences

    def _round(self, regime: Regime) -> None:
        n = self.sequences
        slots = self.policy.slots(n)
        scores = [self._scores(regime, slots) for _ in range(n)] if slots else []
        drafting = draft_s(slots, n)
        trees = self.policy.trees([0] * n, scores) if slots else [Proposal.root(0)] * n
        rows = sum(len(t.tokens) for t in trees)
        if slots:
            walks = [self._walk(regime, t, s) for t, s in zip(trees, scores, strict=True)]
        else:
            walks = [[OTHER]] * n
        stepping = step_s(rows)
        self.policy.observe(
            scores,
            walks,
            rows=rows,
            slots=slots,
            draft_s=self._noisy(drafting) if slots else None,
            step_s=self._noisy(stepping),
        )
        self.tokens += sum(map(len, walks))
        self.seconds += drafting + stepping
        self.rounds += 1
        self.plain_rounds += not slots
        self.widths.append(rows)

    def _noisy(self, seconds: float) -> float:
        spike = 5.0 if self.dice.random() < 0.01 * (self.noise > 0) else 1.0
        return seconds * spike * float(np.exp(self.noise * self.dice.normal()))

    def _scores(self, regime: Regime, slots: int) -> DraftScores:
        logits = np.sort(self.dice.normal(0, 1.0, (slots, K)))[:, ::-1].copy()
        logits[:, 0] += regime.level + regime.spread * self.dice.normal(0, 1, slots)
        logits = np.sort(logits)[:, ::-1]
        rest = 1.0 + np.exp(logits).sum(-1, keepdims=True)  # of the tokens beyond the candidates
        logp = (logits - np.log(rest)).astype(np.float32)
        tokens = 100 * np.arange(1, slots + 1, dtype=np.int32)[:, None] + np.arange(
            K, dtype=np.int32
        )
        return DraftScores(tokens=tokens, logp=logp)

    def _walk(self, regime: Regime, tree: Proposal, scores: DraftScores) -> list[int]:
        """Follow the tree by draws from the true law."""
        node, drawn, on = 0, [], True
        for slot in range(scores.slots + 1):
            token = OTHER
            if slot < scores.slots:
                true = np.exp(regime.honest * scores.logp[slot]) * regime.truth
                true = true / max(1.0, true.sum()) * (1.0 if on else regime.off)
                rank = int(np.searchsorted(np.cumsum(true), self.dice.random()))
                if rank < K:
                    token = int(scores.tokens[slot, rank])
                on = on and rank == 0
            drawn.append(token)
            child = tree.children().get((node, token))
            if child is None:
                return drawn
            node = child
        return drawn


def adaptive(**settings: object) -> Policy:
    return Policy(Settings(**settings), cost_model())  # type: ignore[arg-type]


def best_fixed(regime: Regime, tokens: int, *, seed: int = 1) -> float:
    """The best speed of some fixed budgets, plain decoding included."""
    settings = [Settings(mode="tree", budget=b, max_slots=15) for b in (3, 7, 15)]
    settings += [Settings(mode="chain", max_slots=b) for b in (1, 3, 7)]
    runs = [Decoding(Policy(s, cost_model()), seed=seed).run(regime, tokens) for s in settings]
    return max(1.0, *runs)
