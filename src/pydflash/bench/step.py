"""Cost of a k-row step beside what the machine would take for its bytes and operations alone.

With a peer, both run in turn within the same seconds, so that a slow moment meets both.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydflash.bench.ceilings import Ceilings, measure
from pydflash.bench.harness import Rig
from pydflash.bench.peer import PeerProcess
from pydflash.bench.report import Samples, ratio

ROWS = (1, 2, 4, 8, 16, 32, 64)
_BURST = 3  # steps in a row before the other side's turn: the first finds cold caches
PAUSE_S = 0.02  # lets the other side's idle threads stop spinning


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigure:
    """One row count: our times, the peer's, and the floor under both."""

    rows: int
    ours: Samples
    theirs: Samples | None
    nbytes: float
    flops: float
    floor_s: float
    bound: str

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "rows": self.rows,
            "ours": self.ours.to_json(),
            "bytes": self.nbytes,
            "flops": self.flops,
            "floor_s": self.floor_s,
            "bound": self.bound,
        }
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
    """Time steps of each row count after `depth` stored positions, `rounds` bursts a side, in turn.

    The ceilings are measured again beside every row count; the best of all make the floors, the rates of
    the steps themselves included, ours and the peer's.
    """
    rig.fill(depth)
    if peer is not None:
        peer.fill(depth)
    ceilings = measure(rig.threads)
    timed = []
    for k in rows:
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(rounds):
            time.sleep(PAUSE_S)
            ours += rig.step(k, depth, _BURST)
            if peer is not None:
                time.sleep(PAUSE_S)
                theirs += peer.step(k, depth, _BURST)
        timed.append((k, Samples(tuple(ours)), Samples(tuple(theirs)) if theirs else None))
        ceilings = ceilings.best(measure(rig.threads, tries=2))
    for k, *sides in timed:
        cost = rig.cost(k, depth)
        fastest = min(side.best for side in sides if side is not None)
        ceilings = ceilings.raised(cost.nbytes, cost.flops, fastest, f"step of {k} rows")
    return [_figure(rig, ceilings, depth, *one) for one in timed], ceilings


def _figure(
    rig: Rig, ceilings: Ceilings, depth: int, rows: int, ours: Samples, theirs: Samples | None
) -> StepFigure:
    cost = rig.cost(rows, depth)
    return StepFigure(
        rows=rows,
        ours=ours,
        theirs=theirs,
        nbytes=cost.nbytes,
        flops=cost.flops,
        floor_s=ceilings.floor(cost.nbytes, cost.flops),
        bound=ceilings.bound(cost.nbytes, cost.flops),
    )
