"""RoundTrace: what one round of one sequence proposed, what was accepted, and what it cost. No tensors."""

from dataclasses import dataclass

from pydflash.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrace:
    """A round's tree as it was verified. Node 0 is the anchor, the pending token; parents come first.

    `position` is the anchor's absolute position. `logp[i]` is the drafter's natural-log probability of node
    i after its parent, 0.0 for the anchor. `path` are the accepted nodes from the anchor on; `drawn` is the
    target's own token after the last of them. `rows` is what the whole step computed, other sequences and
    padding included; `step_s` its seconds, `draft_s` those of drafting and of building the tree.
    """

    position: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    logp: tuple[float, ...]
    path: tuple[int, ...]
    drawn: int
    draft_s: float
    step_s: float
    rows: int

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not count or len(self.parents) != count or len(self.logp) != count:
            raise EngineError(
                f"a traced round has {count} tokens, {len(self.parents)} parents and "
                f"{len(self.logp)} probabilities; each node has one of each"
            )
        ordered = all(0 <= p < i for i, p in enumerate(self.parents[1:], start=1))
        if self.parents[0] != -1 or not ordered:
            raise EngineError("the nodes of a traced round are no tree in topological order")
        steps = zip(self.path, self.path[1:], strict=False)
        if not self.path or self.path[0] != 0 or any(self.parents[b] != a for a, b in steps):
            raise EngineError(f"the path {self.path} of a traced round does not run down its tree")

    @property
    def depth(self) -> tuple[int, ...]:
        """Of each node; the anchor's is 0."""
        out: list[int] = []
        for parent in self.parents:
            out.append(0 if parent < 0 else out[parent] + 1)
        return tuple(out)

    @property
    def gained(self) -> tuple[int, ...]:
        """The tokens this round settled: the accepted drafts, then the drawn one."""
        return (*(self.tokens[node] for node in self.path[1:]), self.drawn)
