"""The memory plan against the tensors that are really held: nothing is left out, nothing made up."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pydflash.config import EngineConfig, RuntimeConfig, SpecConfig, StateConfig, StepConfig
from pydflash.draft.dflash import DFlash
from pydflash.draft.write import write_gguf
from pydflash.engine.memory import GPU_RESERVE_BYTES, RESERVE_BYTES, plan_memory
from pydflash.engine.request import Request
from pydflash.errors import CapacityError
from pydflash.models.base import Footprint
from pydflash.sampling.params import SamplingParams
from pydflash.service.build import load
from pydflash.spec.speculator import Speculator
from pydflash.state.base import PagedKVSpec
from tests.tiny.draft import tiny_config, tiny_draft
from tests.tiny.gguf import tiny_gguf

STATE = StateConfig(max_ctx=256, max_concurrency=2, captures=2)


def held(*roots: Any) -> int:
    """Bytes of every tensor that can be reached, each piece of memory once."""
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    todo = list(roots)
    while todo:
        it = todo.pop()
        if id(it) in seen or isinstance(it, (str, int, float, bytes, type(None))):
            continue
        seen.add(id(it))
        if isinstance(it, torch.Tensor):
            sizes[it.data_ptr()] = max(it.nbytes, sizes.get(it.data_ptr(), 0))
        elif isinstance(it, dict):
            todo += it.values()
        elif isinstance(it, (list, tuple)):
            todo += it
        else:
            slots = [n for c in type(it).__mro__ for n in getattr(c, "__slots__", ())]
            names = [*slots, *getattr(it, "__dict__", {})]
            skipped = {"ops", "format", "record", "segments"}  # kernels, and C records over tensors
            todo += [getattr(it, n, None) for n in names if n not in skipped]
    return sum(sizes.values())


@pytest.mark.parametrize("ops", ["ref", "cpu"])
@pytest.mark.parametrize("arch", ["llama", "qwen35", "qwen35moe"])
def test_plan_is_what_is_held(tmp_path: Path, arch: str, ops: Any) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", arch, context=4096, vocab=1000)
    config = EngineConfig(runtime=RuntimeConfig(ops=ops, threads=1), state=STATE)
    loaded = load(path, config)
    engine, plan = loaded.engine, loaded.plan
    engine.add(Request(prompt=(5, 6, 7), params=SamplingParams(max_tokens=40), seed=0))
    while not engine.is_idle:
        engine.step()
    states = engine.states
    assert held(states.kv) == plan.kv
    assert plan.slots == (0 if states.recurrent is None else 3 * 2)
    if states.recurrent is not None:
        assert held(states.recurrent) == plan.recurrent
    assert bool(plan.decoded) == (ops == "ref")
    assert plan.rope > 0
    model = plan.weights + plan.decoded + plan.rope
    assert held(engine.model) == pytest.approx(model, rel=0.02)
    assert held(engine.model, states) == pytest.approx(plan.lasting, rel=0.02)


def test_plan_counts_what_a_step_takes(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", "qwen35")
    config = EngineConfig(
        runtime=RuntimeConfig(ops="ref", threads=1),
        state=STATE,
        step=StepConfig(max_exact_rows=7, prefill_chunk=32),
        spec=SpecConfig(no_speculation=True),
    )
    loaded = load(path, config)
    plan, model = loaded.plan, loaded.engine.model
    exact = 7 + 2  # recomputed, and a token of each sequence
    tapes = sum(getattr(spec, "tape_bytes", 0) for spec in model.state_specs())
    assert plan.tape == exact * tapes
    assert plan.logits == 3 * 4 * model.vocab_size
    assert plan.activations % (4 * (exact + 32)) == 0
    assert plan.step == plan.tape + plan.logits + plan.activations
    text = "\n".join(plan.lines())
    for word in ("weights", "decoded", "rotary", "kv cache", "recurrent", "activations", "logits"):
        assert word in text


def test_a_drafter_is_planned_for_and_its_file_let_go(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf")
    draft = write_gguf(tiny_config(), tiny_draft(tiny_config()), tmp_path / "draft.gguf")
    config = EngineConfig(
        runtime=RuntimeConfig(ops="cpu", threads=1),
        state=STATE,
        step=StepConfig(max_exact_rows=7, prefill_chunk=32),
        spec=SpecConfig(draft=str(draft), ddtree_budget=3),
    )
    loaded = load(path, config)
    plan = loaded.plan
    tokens = 7 + 2 * 4 + 32  # recomputed, four nodes of each sequence, a prompt's chunk
    assert plan.taps == 3 * tokens * (2 * 64 * 4)  # two layers' outputs of 64 floats
    proposer = loaded.engine.proposer
    assert isinstance(proposer, Speculator)
    assert isinstance(proposer.drafter, DFlash)
    assert plan.drafter == pytest.approx(proposer.drafter.nbytes, rel=0.02)
    assert plan.step == plan.tape + plan.logits + plan.activations + plan.taps
    assert "features" in "\n".join(plan.lines())
    assert _resident_kb(draft) == 0


def _resident_kb(file: Path) -> int:
    """Of what is mapped of a file, how much lies in memory (Linux tells; elsewhere nothing is claimed)."""
    table = Path("/proc/self/smaps")
    size, ours = 0, False
    for line in table.read_text().splitlines() if table.exists() else ():
        if "-" in line.split()[0]:
            ours = line.endswith(str(file))
        elif ours and line.startswith("Rss:"):
            size += int(line.split()[1])
    return size


def test_plan_for_a_gpu() -> None:
    """Captured steps and their scratch, wide prompt chunks and the GPU's own reserve."""
    asked: dict[str, Any] = {"footprint": PRINT, "specs": SPECS, "model_ctx": 4096}
    asked |= {"state": StateConfig(max_ctx=1024), "available": 4 << 30, "nodes": 5}
    cpu, gpu = plan_memory(**asked), plan_memory(**asked, on_gpu=True)
    assert (cpu.graphs, cpu.reserve, cpu.chunk) == (0, RESERVE_BYTES, 256)
    widths = 1 + 2 + 3 + 4 + 6 + 8  # all that a round of 5 nodes may take, and some more
    assert gpu.graphs == widths * PRINT.logits + 8192
    assert gpu.reserve == GPU_RESERVE_BYTES
    assert gpu.activations - cpu.activations == (1024 - 256) * PRINT.token
    assert gpu.lasting - cpu.lasting == gpu.graphs
    assert "captured steps" in "\n".join(gpu.lines())
    wide = dataclasses.replace(PRINT, query=4 * 4096)  # sums of attention's chunks
    exact = 64 + StateConfig().max_concurrency * 5
    for max_ctx, count in ((96, 2), (1024, 16), (4096, 16 + 12)):  # 64 positions each, then 256
        asked["state"] = StateConfig(max_ctx=max_ctx)
        few, more = (plan_memory(**asked | {"footprint": f}, on_gpu=True) for f in (PRINT, wide))
        assert more.step - few.step == count * exact * 16384
    with pytest.raises(CapacityError, match="1,024 MiB of reserve"):
        plan_memory(**asked | {"available": GPU_RESERVE_BYTES}, on_gpu=True)


def test_embeddings_on_the_host_are_told_and_not_counted() -> None:
    asked: dict[str, Any] = {"specs": SPECS, "model_ctx": 512, "state": StateConfig()}
    there = dataclasses.replace(PRINT, on_host=3 << 20)
    asked |= {"available": 4 << 30, "on_gpu": True}
    plan, plain = (plan_memory(footprint=f, **asked) for f in (there, PRINT))
    assert (plan.lasting, plan.step) == (plain.lasting, plain.step)
    assert "embeddings on the host 3 MiB" in plan.lines()[0]
    assert "host" not in plain.lines()[0]


SPECS = [PagedKVSpec(layer=0, kv_heads=2, head_dim=32)]  # a page of f16: 8 KiB
PRINT = Footprint(weights=1 << 20, decoded=0, position=256, token=4096, logits=4096)


@pytest.mark.parametrize("sequences", [1, 3])
def test_what_is_said_to_fit_fits(sequences: int) -> None:
    """The refusal names a context; with that one the same memory is enough, a page more is not."""
    asked: dict[str, Any] = {"footprint": PRINT, "specs": SPECS, "model_ctx": 1 << 20}
    asked["available"] = RESERVE_BYTES + (8 << 20)

    def config(max_ctx: int) -> StateConfig:
        return StateConfig(max_ctx=max_ctx, max_concurrency=sequences)

    with pytest.raises(CapacityError, match=r"use --max-ctx \d+ or less") as caught:
        plan_memory(state=config(1 << 20), **asked)
    most = int(str(caught.value).split("--max-ctx ")[1].split()[0])
    plan = plan_memory(state=config(most), **asked)
    assert plan.lasting + plan.step + RESERVE_BYTES <= plan.available
    with pytest.raises(CapacityError):
        plan_memory(state=config(most + 32), **asked)
    ours = plan_memory(state=config(0), **asked)
    assert most // 2 - 32 <= ours.max_ctx <= most // 2
    assert dataclasses.replace(ours, rope=0).lasting < ours.lasting
    with pytest.raises(CapacityError, match="smaller model"):
        plan_memory(state=config(0), **(asked | {"available": RESERVE_BYTES}))


def test_what_is_said_to_fit_fits_with_a_gpus_chunks() -> None:
    """A context's first positions leave more partial sums each than those behind."""
    wide = dataclasses.replace(PRINT, query=4 * 1024)
    asked: dict[str, Any] = {"footprint": wide, "specs": SPECS, "model_ctx": 1 << 20}
    asked |= {"available": GPU_RESERVE_BYTES + (64 << 20), "on_gpu": True}

    def config(max_ctx: int) -> StateConfig:
        return StateConfig(max_ctx=max_ctx, max_concurrency=2)

    with pytest.raises(CapacityError, match="--max-ctx") as refusal:
        plan_memory(state=config(1 << 20), **asked)
    most = int(re.findall(r"use --max-ctx (\d+)", str(refusal.value))[0])
    plan = plan_memory(state=config(most), **asked)
    assert plan.lasting + plan.step <= plan.available - plan.reserve
    with pytest.raises(CapacityError):
        plan_memory(state=config(most + 32), **asked)
