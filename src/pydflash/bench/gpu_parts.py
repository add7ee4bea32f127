"""Parts of the GPU bench that need no drafter. Each returns its figures for the JSON and says them."""

import time
from statistics import median
from typing import Any

import torch

from pydflash.bench.gpu_subject import SETTLE, Subject, ms, shallow
from pydflash.bench.report import Samples
from pydflash.kernels.ops import PAGE_SIZE

ROWS = (24, 2, 4, 8, 16, 32, 64)
DEEP = 16384
PREFILL = 2048
DECODE = 64  # steps
TOGETHER = 8
ROUNDS_HELD = 6  # rounds after which memory is as large as it gets

Figures = dict[str, Any]


def deep(ctx: int) -> int:
    """Many positions, as far as a context allows."""
    return min(DEEP, (ctx - 1) // 32 * 32)


def prompt(ctx: int) -> int:
    """Tokens of the prompt that is read."""
    return min(PREFILL, (ctx - 2) // 32 * 32)


def answer(ctx: int) -> int:
    """Steps of the answer that is written."""
    return min(DECODE, ctx - shallow(ctx) - SETTLE - 4)


def step(subject: Subject) -> Figures:
    """One token after few and after many positions."""
    out: Figures = {}
    for depth in dict.fromkeys((subject.depth, deep(subject.rig.ctx))):
        subject.rig.fill(depth)
        out[f"depth {depth}"] = _step(subject, 1, depth)
    return out


def verify(subject: Subject) -> Figures:
    """Branching trees of several sizes, and their commits."""
    rig, depth, out = subject.rig, subject.depth, {}
    rig.fill(depth)
    for rows in ROWS:
        rig.tree_step(rows, depth, SETTLE)
        steps, commits = rig.tree_step(rows, depth, subject.repeats)
        whole = Samples(tuple(a + b for a, b in zip(steps, commits, strict=True)))
        busy = subject.watch.busy(rig.committer(rows, depth), subject.repeats)
        rig.clear(depth)
        floor = _floor(subject, rows, depth)
        out[f"{rows} rows"] = {
            "whole": whole.to_json(),
            "step": Samples(tuple(steps)).to_json(),
            "commit": Samples(tuple(commits)).to_json(),
            "whole_device": busy.to_json(),
            "floor_s": floor,
        }
        subject.say(
            f"tree of {rows} rows: {ms(whole.median)} with its commit ({ms(median(commits))}), "
            f"both on the device {ms(busy.median)}, floor {ms(floor)}"
        )
    return out


def prefill(subject: Subject) -> Figures:
    """A prompt, from nothing to its first token."""
    count = prompt(subject.rig.ctx)
    times = []
    for i in range(4):
        with subject.session(count, 2) as session:
            began = time.perf_counter()
            session.read()
            if i:
                times.append(time.perf_counter() - began)
    samples = Samples(tuple(times))
    subject.say(
        f"prefill of {count} tokens by {subject.rig.chunk}: {count / samples.median:.0f} tok/s "
        f"({ms(samples.median)})"
    )
    return {
        "tokens": count,
        "chunk": subject.rig.chunk,
        "tok_s": count / samples.median,
        **samples.to_json(),
    }


def decode(subject: Subject) -> Figures:
    """One answer through the engine, without drafts."""
    found = _together(subject, 1)
    subject.say(f"decode: {found['tok_s']:.1f} tok/s, a step {ms(found['step']['median_s'])}")
    return found


def eight(subject: Subject) -> Figures:
    """Eight answers together, over one alone of the same engine."""
    one, all_ = _together(subject, 1), _together(subject, TOGETHER)
    out = {"one": one, "together": all_, "sequences": TOGETHER}
    out["ratio"] = all_["tok_s"] / one["tok_s"]
    subject.say(
        f"{TOGETHER} sequences: {all_['tok_s']:.1f} tok/s of all, {out['ratio']:.2f} x one "
        f"({one['tok_s']:.1f}); a step {ms(all_['step']['median_s'])}"
    )
    return out


def memory(subject: Subject) -> Figures:
    """The most that loading and two answers held, the second in a full context, beside the plan."""
    plan, device, before = subject.rig.plan, subject.rig.ops.device, subject.before
    parts = ("weights", "on_host", "kv", "recurrent", "drafter", "rings", "graphs", "rope", "tape")
    out: Figures = {name: getattr(plan, name) for name in (*parts, "activations", "logits", "taps")}
    out |= {"planned": plan.lasting + plan.step, "max_ctx": plan.max_ctx}
    loaded = _most(device)
    _answers(subject)
    if device.type != "cuda":
        subject.say(f"planned {_gib(out['planned'])}; memory in use is told on a GPU only")
        return out
    free, total = torch.cuda.mem_get_info(device)
    used, reserved = total - free, torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_reserved(device)
    out |= {
        "torch_reserved": reserved,
        "torch_peak_reserved": peak,
        "torch_peak_allocated": torch.cuda.max_memory_allocated(device),
        "torch_peak_loading": loaded,
        "context": before.context,
        "device_used_before_load": before.used,
        "torch_reserved_before_load": before.reserved,
        "device_used": used,
        "code": used - reserved - before.context,
        "peak": used - reserved + peak,
    }
    subject.say(
        f"memory: peak {_gib(out['peak'])} of the whole device: torch {_gib(peak)} (tensors "
        f"{_gib(out['torch_peak_allocated'])}, while loading {_gib(loaded)}), context and others "
        f"{_gib(before.context)}, kernels and graphs {_gib(out['code'])}; planned "
        f"{_gib(out['planned'])}: weights {_gib(plan.weights)}, kv {_gib(plan.kv)}, recurrent "
        f"{_gib(plan.recurrent)}, drafter {_gib(plan.drafter)}; on the host {_gib(plan.on_host)}"
    )
    return out


def _answers(subject: Subject) -> None:
    """A short prompt and one that fills the context, each with some rounds after it."""
    drafts = subject.speculator is not None
    most = subject.rig.ctx - 2 * ROUNDS_HELD * PAGE_SIZE
    for tokens in sorted({subject.depth, max(subject.depth, most)}):
        count = min(2 * ROUNDS_HELD * PAGE_SIZE, subject.rig.ctx - tokens) - 1
        with subject.session(tokens, count, speculate=drafts) as session:
            session.read()
            session.steps(ROUNDS_HELD)


def _most(device: torch.device) -> int:
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


def _step(subject: Subject, rows: int, depth: int) -> Figures:
    rig = subject.rig
    rig.step(rows, depth, SETTLE)
    wall = Samples(tuple(rig.step(rows, depth, subject.repeats)))
    busy = subject.watch.busy(rig.repeater(rows, depth), subject.repeats)
    rig.clear(depth)
    floor = _floor(subject, rows, depth)
    subject.say(
        f"step of {rows} after {depth}: {ms(wall.median)}, on the device {ms(busy.median)}, "
        f"floor {ms(floor)} ({busy.median / floor:.2f} x)"
    )
    return {"wall": wall.to_json(), "device": busy.to_json(), "floor_s": floor}


def _floor(subject: Subject, rows: int, depth: int) -> float:
    cost = subject.rig.cost(rows, depth)
    return subject.floors.floor(cost.nbytes, cost.flops)


def _together(subject: Subject, sequences: int) -> Figures:
    rig = subject.rig
    depth = subject.depth
    steps = answer(rig.ctx)
    with subject.session(depth, steps + SETTLE + 4, sequences=sequences) as session:
        session.read()
        session.steps(SETTLE)
        times, tokens = session.steps(steps)
    return {"tok_s": tokens / sum(times), "tokens": tokens, "step": Samples(tuple(times)).to_json()}


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
