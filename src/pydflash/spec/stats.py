"""DraftStats: what speculation did and what it cost, of one sequence or of many."""

from dataclasses import dataclass, field

from pydflash.spec.proposal import Proposal


@dataclass(slots=True)
class DraftStats:
    """Sums over rounds; a sequence's part of a shared round is its share of the time.

    A round is a step that decoded. `offered[d]` counts rounds whose tree reached depth d + 1 and
    `accepted[d]` those whose walk did. Seconds of `step_s` include the target's pass over every node;
    `reference_s` is what those rounds would have taken with one node each.
    """

    rounds: int = 0
    plain_rounds: int = 0  # of them, those that drafted nothing
    nodes: int = 0  # drafted, the roots excluded
    accepted_nodes: int = 0
    tokens: int = 0  # drawn: the accepted nodes, and one more a round
    draft_s: float = 0.0
    step_s: float = 0.0
    reference_s: float = 0.0
    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(
        self,
        proposal: Proposal,
        drawn: int,
        *,
        drafted: bool,
        draft_s: float = 0.0,
        step_s: float = 0.0,
        reference_s: float = 0.0,
    ) -> None:
        """Count a round: `drawn` tokens, all but the last of them nodes of the proposal.

        `drafted`: whether the drafter ran, be the tree its root alone. Seconds are this sequence's share.
        """
        reached = max(drawn - 1, 0)
        deepest = max(proposal.depth)
        self._reserve(deepest)
        for depth in range(deepest):
            self.offered[depth] += 1
            self.accepted[depth] += depth < reached
        self.rounds += 1
        self.plain_rounds += not drafted
        self.nodes += len(proposal.tokens) - 1
        self.accepted_nodes += reached
        self.tokens += drawn
        self.draft_s += draft_s
        self.step_s += step_s
        self.reference_s += reference_s

    def merge(self, other: "DraftStats") -> None:
        """Add another sequence's sums."""
        self._reserve(len(other.offered))
        for depth, (offered, accepted) in enumerate(
            zip(other.offered, other.accepted, strict=True)
        ):
            self.offered[depth] += offered
            self.accepted[depth] += accepted
        self.rounds += other.rounds
        self.plain_rounds += other.plain_rounds
        self.nodes += other.nodes
        self.accepted_nodes += other.accepted_nodes
        self.tokens += other.tokens
        self.draft_s += other.draft_s
        self.step_s += other.step_s
        self.reference_s += other.reference_s

    @property
    def acceptance_length(self) -> float:
        """Tokens a round, plain rounds included: the seeds' tokens / steps."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def depth_rates(self) -> list[float]:
        """Of the rounds that offered each depth, how many accepted it."""
        return [a / o for a, o in zip(self.accepted, self.offered, strict=True)]

    @property
    def round_cost(self) -> float:
        """A round's time, draft included, in one-node steps; 0 where no reference is known."""
        return (self.draft_s + self.step_s) / self.reference_s if self.reference_s else 0.0

    @property
    def draft_share(self) -> float:
        """Of the rounds' time, how much was drafting."""
        total = self.draft_s + self.step_s
        return self.draft_s / total if total else 0.0

    @property
    def speedup(self) -> float:
        """Expected from acceptance and cost: tokens a round over the round's cost; 0 if unknown."""
        return self.acceptance_length / self.round_cost if self.round_cost else 0.0

    def line(self) -> str:
        """One line for people."""
        if not self.rounds:
            return "no round yet"
        parts = [f"{self.acceptance_length:.2f} tokens/round", f"{self.rounds} rounds"]
        if self.plain_rounds:
            parts[-1] += f" ({self.plain_rounds} plain)"
        if self.nodes:
            parts.append(f"{self.accepted_nodes} of {self.nodes} drafted accepted")
        if self.round_cost:
            parts.append(f"round {self.round_cost:.2f} steps (draft {self.draft_share:.0%})")
        return ", ".join(parts)

    def _reserve(self, depths: int) -> None:
        missing = depths - len(self.offered)
        if missing > 0:
            self.offered += [0] * missing
            self.accepted += [0] * missing
