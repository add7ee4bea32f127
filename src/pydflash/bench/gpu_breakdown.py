"""Part of the GPU bench: a profiler's account of the step, the tree and the round."""

from collections.abc import Callable, Mapping
from typing import Any

from pydflash.bench.breakdown import DRAFT, lines, names, profiled
from pydflash.bench.gpu_round import rounds
from pydflash.bench.gpu_subject import Subject
from pydflash.bench.report import Samples
from pydflash.bench.stopwatch import Parts
from pydflash.draft.dflash import DFlash

_REPEATS = 6
_TREE = 24


def breakdown(subject: Subject) -> dict[str, Any]:
    """Microseconds and launches by kind of kernel."""
    rig, depth = subject.rig, subject.depth
    rig.fill(depth)
    out: dict[str, Any] = {}
    for name, rows, tree in (("step", 1, False), (f"tree of {_TREE}", _TREE, True)):
        wall = Samples(tuple(rig.step(rows, depth, subject.repeats)))
        if tree:
            wall = Samples(tuple(rig.tree_step(rows, depth, subject.repeats)[0]))
        floors = _floors(subject, rows)
        out[name] = _account(subject, name, rig.repeater(rows, depth, tree=tree), wall, floors)
        rig.clear(depth)
    if subject.speculator is not None:
        out["round"] = _round(subject)
    return out


def _round(subject: Subject) -> dict[str, Any]:
    speculator = subject.speculator
    assert speculator is not None
    parts = Parts(subject.rig.ops.device)
    with rounds(subject, 2 * _REPEATS + 2) as session:
        wall = Samples(tuple(session.steps(_REPEATS)[0]))
        floors = _floors(subject, speculator.policy.settings.budget + 1)
        drafter = speculator.drafter
        if isinstance(drafter, DFlash):
            nbytes = drafter.nbytes + subject.rig.head_nbytes
            floors["drafter: products"] = subject.floors.floor(nbytes, 0.0) * 1e6
        with parts.watching((drafter, "score", DRAFT), (drafter, "start", DRAFT)):
            return _account(subject, "round", session.step, wall, floors)


def _floors(subject: Subject, rows: int) -> dict[str, float]:
    """Microseconds by kind."""
    costs = subject.rig.costs(rows, subject.depth)
    return {kind: subject.floors.floor(c.nbytes, c.flops) * 1e6 for kind, c in costs.items()}


def _account(
    subject: Subject,
    name: str,
    work: Callable[[], object],
    wall: Samples,
    floors: Mapping[str, float],
) -> dict[str, Any]:
    launches, drafts = profiled(work, _REPEATS, subject.rig.ops.device)
    wall_us = wall.median * 1e6
    found = lines(launches, _REPEATS, wall_us, floors_us=floors, drafts=drafts)
    subject.say(f"{name}, {wall_us:.0f} us:")
    for line in found:
        floor = "" if line.floor_us is None else f", floor {line.floor_us:.0f} us"
        subject.say(f"  {line.kind}: {line.us:.0f} us in {line.launches:.0f} launches{floor}")
    return {
        "wall_us": wall_us,
        "kinds": [line.to_json() for line in found],
        "kernels": names(launches, _REPEATS),
    }
