"""Cost of a k-row step beside what the machine would take for its bytes and operations alone.

A chain is the step alone, as a peer has it. A tree is what a round of speculation does: the step over
branches and the commit of an accepted path, keys and values moved and recurrent states advanced. With a peer,
both sides run in turn within the same seconds, so that a slow moment meets both.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydflash.bench.ceilings import Ceilings, measure
from pydflash.bench.harness import Cost, Rig, branching
from pydflash.bench.peer import PeerProcess
from pydflash.bench.report import Samples, ratio

ROWS = (1, 2, 4, 8, 16, 32, 64)
_BURST = 3  # steps in a row before the other side's turn: the first finds cold caches
PAUSE_S = 0.02  # lets the other side's idle threads stop spinning


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigure:
    """One row count and shape: our times, the peer's of as many rows, and the floor under ours.

    `ours` of a tree holds the commit, `commits` is that part.
    """

    rows: int
    shape: Literal["chain", "tree"]
    ours: Samples
    commits: Samples | None
    theirs: Samples | None
    nbytes: float
    flops: float
    floor_s: float
    bound: str

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "rows": self.rows,
            "shape": self.shape,
            "ours": self.ours.to_json(),
            "bytes": self.nbytes,
            "flops": self.flops,
            "floor_s": self.floor_s,
            "bound": self.bound,
        }
        if self.commits is not None:
            out["commit"] = self.commits.to_json()
        if self.theirs is not None:
            out["llama.cpp"] = self.theirs.to_json()
            out["ratio"] = ratio(self.ours, self.theirs)
        return out


def measure_steps(
    rig: Rig,
    peer: PeerProcess | None,
    *,
    depth: int,
    rows: Sequence[int] = ROWS,
    rounds: int = 7,
) -> tuple[list[StepFigure], Ceilings]:
    """Time steps of each row count after `depth` stored positions, `rounds` bursts a side, in turn; chains,
    and from two rows on trees with their commit.

    The ceilings are measured again beside every row count; the best of all make the floors, the rates of
    the steps themselves included, ours and the peer's.
    """
    rig.fill(depth)
    if peer is not None:
        peer.fill(depth)
    ceilings = measure(rig.threads)
    timed: list[_Timed] = []
    for k in rows:
        chain, tree, theirs = _Timed(k, "chain"), _Timed(k, "tree"), list[float]()
        for _ in range(rounds):
            time.sleep(PAUSE_S)
            chain.seconds += rig.step(k, depth, _BURST)
            if k > 1:
                steps, commits = rig.tree_step(k, depth, _BURST)
                tree.seconds += [step + commit for step, commit in zip(steps, commits, strict=True)]
                tree.commits += commits
            if peer is not None:
                time.sleep(PAUSE_S)
                theirs += peer.step(k, depth, _BURST)
        for one in (chain, tree):
            if one.seconds:
                one.theirs = theirs
                timed.append(one)
        ceilings = ceilings.best(measure(rig.threads, tries=2))
    for one in timed:
        cost = _cost(rig, one, depth)
        fastest = min(one.seconds + one.theirs)
        ceilings = ceilings.raised(cost.nbytes, cost.flops, fastest, f"step of {one.rows} rows")
    return [_figure(rig, ceilings, depth, one) for one in timed], ceilings


@dataclass(slots=True)
class _Timed:
    """Seconds of one row count and shape as they come in."""

    rows: int
    shape: Literal["chain", "tree"]
    seconds: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)


def _cost(rig: Rig, one: _Timed, depth: int) -> Cost:
    path = branching(range(one.rows)).path(one.rows - 1) if one.shape == "tree" else []
    return rig.cost(one.rows, depth, committed=len(path))


def _figure(rig: Rig, ceilings: Ceilings, depth: int, one: _Timed) -> StepFigure:
    cost = _cost(rig, one, depth)
    return StepFigure(
        rows=one.rows,
        shape=one.shape,
        ours=Samples(tuple(one.seconds)),
        commits=Samples(tuple(one.commits)) if one.commits else None,
        theirs=Samples(tuple(one.theirs)) if one.theirs else None,
        nbytes=cost.nbytes,
        flops=cost.flops,
        floor_s=ceilings.floor(cost.nbytes, cost.flops),
        bound=ceilings.bound(cost.nbytes, cost.flops),
    )
