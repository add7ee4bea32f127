"""Parts of the GPU bench that need a drafter: whole rounds, their parts, and forced acceptance."""

from statistics import median
from typing import Any

from pydflash.bench.forced import Forced
from pydflash.bench.gpu_subject import SETTLE, Subject, ms
from pydflash.bench.report import Samples
from pydflash.bench.session import Session
from pydflash.bench.stopwatch import Parts
from pydflash.errors import ConfigError
from pydflash.spec.speculator import Speculator

LENGTH = 8.31
"""Tokens a round: what the published drafter of this size reaches, which random weights cannot."""
_ROUNDS = 40
_WATCHED = 20
_FORCED = 48  # rounds

Figures = dict[str, Any]


def needed(subject: Subject) -> Speculator:
    speculator = subject.speculator
    if speculator is None:
        raise ConfigError("rounds need a drafter: name one with --draft")
    return speculator


def round_(subject: Subject) -> Figures:
    """Whole rounds through the engine; then where the host's clock says their time goes."""
    speculator = needed(subject)
    plain = _plain_step_s(subject)
    with rounds(subject, _ROUNDS) as session:
        times, tokens = session.steps(_ROUNDS, to_idle=False)
    whole = Samples(tuple(times))
    out: Figures = {
        "budget": speculator.policy.settings.budget,
        "block": speculator.drafter.slots + 1,
        "whole": whole.to_json(),
        "plain_step_s": plain,
        "ratio": whole.median / plain,
        "tokens_a_round": tokens / len(times),
    }
    subject.say(
        f"round of budget {out['budget']}: {ms(whole.median)}, {out['ratio']:.2f} x a plain engine step "
        f"of {ms(plain)}; {out['tokens_a_round']:.2f} tokens"
    )
    out["parts"] = _parts(subject, speculator)
    return out


def forced(subject: Subject) -> Figures:
    """Tokens a second if `LENGTH` tokens a round were accepted: arranged, not reached."""
    speculator = needed(subject)
    engine, depth = subject.rig.engine, subject.depth
    # What is known must reach beyond the deepest tree of the last round.
    count = min(int((_FORCED + SETTLE + 3) * LENGTH), subject.rig.ctx - depth - 2)
    wanted = int(count / LENGTH) - SETTLE - 3
    with subject.session(depth, count) as session:
        session.steps(count)
        known = session.sequences[0].generated
    out: Figures = {}
    for _ in range(2):  # the first captures what the lengths need
        engine.proposer = Forced(speculator, known, depth, LENGTH)
        try:
            with subject.session(depth, count, speculate=True) as session:
                session.read()
                session.steps(SETTLE)
                times, tokens = session.steps(wanted, to_idle=False)
                made = session.sequences[0].generated
        finally:
            engine.proposer = speculator
        whole = Samples(tuple(times))
        out = {
            "acceptance": "forced: known tokens written over one path of every tree",
            "tokens_a_round": tokens / len(times),
            "rounds": len(times),
            "tok_s": tokens / sum(times),
            "tok_s_by_median": LENGTH / whole.median,
            "round": whole.to_json(),
            "identical": made[: len(known)] == known[: len(made)],
        }
    subject.say(
        f"FORCED acceptance of {out['tokens_a_round']:.2f} tokens a round: {out['tok_s']:.0f} tok/s "
        f"(a round {ms(out['round']['median_s'])}); tokens "
        + ("are those of plain decoding" if out["identical"] else "DIFFER from plain decoding")
    )
    return out


def rounds(subject: Subject, count: int) -> Session:
    """A session that has drafted a few rounds, with room for `count` more."""
    # By chance more than one token a round is accepted.
    room = min(2 * (count + SETTLE) + 8, subject.rig.ctx - subject.depth - 1)
    session = subject.session(subject.depth, room, speculate=True)
    session.read()
    session.steps(SETTLE)
    return session


def _plain_step_s(subject: Subject) -> float:
    """A step of plain decoding through the same engine."""
    with subject.session(subject.depth, _ROUNDS + SETTLE + 4) as session:
        session.read()
        session.steps(SETTLE)
        times, _ = session.steps(_ROUNDS, to_idle=False)
    return median(times)


def _parts(subject: Subject, speculator: Speculator) -> Figures:
    engine = subject.rig.engine
    parts = Parts(subject.rig.ops.device)
    watched = (
        (speculator.drafter, "score", "draft"),
        (speculator.drafter, "start", "draft"),  # a step earlier than its result is wanted
        (speculator.policy, "trees", "tree"),
        (speculator, "_grow", "tree"),
        (engine.graphs, "forward", "verify"),
        (engine.sampler, "rows", "draws"),
        (engine.states, "move", "commit"),
    )
    with rounds(subject, _WATCHED) as session, parts.watching(*watched):
        times, _ = session.steps(_WATCHED)
    found = {name: median(seconds) for name, seconds in parts.seconds.items() if seconds}
    whole = median(times)
    found["rest"] = whole - sum(found.values())
    told = ", ".join(f"{name} {ms(seconds)}" for name, seconds in found.items())
    subject.say(f"round with syncs {ms(whole)}: {told}")
    return {"whole_s": whole} | {f"{name}_s": seconds for name, seconds in found.items()}
