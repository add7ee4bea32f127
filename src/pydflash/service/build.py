"""The composition root: a path and a config become an engine, a tokenizer and a template.

The only file that knows every part.
"""

import ctypes
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import torch

from pydflash.checkpoint.files import Checkpoint, open_checkpoint
from pydflash.checkpoint.meta import read_vocabulary
from pydflash.config import EngineConfig, KvFormat, PrefixChoice
from pydflash.device import Scarce, default_threads, free_bytes, grow_in_place
from pydflash.draft.fit import TargetFacts
from pydflash.engine.engine import Engine
from pydflash.engine.graphs import GraphPool
from pydflash.engine.memory import MemoryPlan, plan_memory
from pydflash.engine.states import States, layer_states
from pydflash.errors import CapacityError, CheckpointError, ConfigError
from pydflash.kernels import select
from pydflash.kernels.ops import PAGE_SIZE, OpTable
from pydflash.kernels.record import recorder
from pydflash.kernels.upload import end_pushes, trim
from pydflash.models.load import Description, describe
from pydflash.service.draft import Drafting, build_drafter, build_speculator, choose
from pydflash.service.placement import (
    check_draft_device,
    embeddings_on_host,
    first_fit,
    kernels_for,
    target_devices,
)
from pydflash.service.thread import EngineThread
from pydflash.spec.proposer import Proposer
from pydflash.state.base import recurrent_specs
from pydflash.state.cache import PrefixCache
from pydflash.state.kv import KvStore
from pydflash.state.pages import PagePool
from pydflash.state.recurrent import RecurrentStore
from pydflash.text.builtin import builtin_template
from pydflash.text.template import ChatTemplate
from pydflash.text.tokenizer import Tokenizer
from pydflash.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything a face needs of a model that is ready to answer."""

    name: str
    path: Path
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    plan: MemoryPlan
    ops: str
    device: str
    threads: int
    load_s: float
    drafter: str | None  # what drafts, if anything does
    thread: EngineThread | None = None  # where it was loaded, if that was not the caller's

    def lines(self) -> list[str]:
        """What was chosen at load, for a person to read."""
        return [
            f"{self.name}: {self.engine.model.arch}, {self.ops} kernels on {self.device}, "
            f"{self.threads} threads, loaded in {self.load_s:.2f} s",
            f"drafts by {self.drafter}" if self.drafter else "no drafts",
            *self.plan.lines(),
        ]


def load(
    path: Path,
    config: EngineConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
    proposer: Proposer | None = None,
) -> Loaded:
    """Open, plan, bind. `progress` is told (bytes done, bytes in all)."""
    start = time.perf_counter()
    _check(config)
    threads = config.runtime.threads or default_threads()
    torch.set_num_threads(threads)
    checkpoint = open_checkpoint(path)
    described = describe(checkpoint)
    # Before the weights, so that what building it needs for a moment is not on top of them.
    tokenizer, template = build_language(checkpoint)
    _trim()
    sequences = config.state.max_concurrency
    facts = TargetFacts(
        layers=described.config.layers,
        hidden=described.config.hidden,
        vocab=described.config.vocab,
        name=checkpoint.meta.str("general.name", default="") or None,
        template=template.source,
    )
    drafting = (
        None
        if proposer is not None
        else choose(config.spec, facts, config.state.max_ctx or described.config.max_positions)
    )
    nodes = proposer.max_nodes if proposer else drafting.settings.max_nodes if drafting else 1

    def attempt(device: torch.device) -> tuple[OpTable, MemoryPlan, Engine]:
        kernels = kernels_for(device, config.runtime.ops)
        tables = embeddings_on_host(config.runtime, kernels, described.table_nbytes)
        ops = select.build(device, ops=kernels, threads=threads, host_tables=tables)
        plan = plan_memory(
            footprint=described.footprint(ops),
            specs=described.config.state_specs(),
            model_ctx=described.config.max_positions,
            state=config.state,
            available=free_bytes(str(device)),
            step=config.step,
            nodes=nodes,
            drafter=drafting.held(ops) if drafting else 0,
            rings=drafting.rings(sequences) if drafting else 0,
            features=drafting.features if drafting else 0,
            on_gpu=device.type != "cpu",
        )
        check_draft_device(config.runtime, device)
        try:
            with Scarce() as memory:
                engine = _build(
                    described, config, ops, plan, tokenizer, drafting, proposer, progress
                )
        finally:
            end_pushes()
        if memory.ran_out:  # and the error is gone, whose frames held what was loaded
            raise CapacityError(_no_room(device, plan, memory.said))
        return ops, plan, engine

    ops, plan, engine = first_fit(target_devices(config.runtime), attempt)
    return Loaded(
        name=checkpoint.meta.str("general.name", default=path.stem),
        path=path,
        engine=engine,
        tokenizer=tokenizer,
        template=template,
        plan=plan,
        ops=ops.name,
        device=str(ops.device),
        threads=threads,
        load_s=time.perf_counter() - start,
        drafter=_drafter_name(drafting),
    )


def _build(
    described: Description,
    config: EngineConfig,
    ops: OpTable,
    plan: MemoryPlan,
    tokenizer: Tokenizer,
    drafting: Drafting | None,
    proposer: Proposer | None,
    progress: Callable[[int, int], None] | None,
) -> Engine:
    """Everything that takes the memory of the plan."""
    checkpoint, sequences = described.checkpoint, config.state.max_concurrency
    on_gpu = ops.device.type != "cpu"
    if on_gpu:
        torch.cuda.set_device(ops.device)  # of this thread, which will drive the engine
        grow_in_place(str(ops.device))
    for line in plan.lines() if on_gpu else ():
        log.info(line)
    done = 0

    def tell(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, checkpoint.nbytes)

    model = described.load(ops, plan.max_ctx, tell)
    specs = model.state_specs()
    kv = KvStore(
        specs,
        plan.pages,
        config.state.cache_type_k,
        config.state.cache_type_v,
        ops,
        scratch=on_gpu,
        record=recorder(ops),
    )
    recurrent = None
    if plan.slots:
        recurrent = RecurrentStore(recurrent_specs(specs), plan.slots, ops, scratch=on_gpu)
    drafter, rings = None, None
    if drafting is not None:
        drafter, rings = build_drafter(drafting, checkpoint, model, ops, sequences)
    end_pushes()
    if not ops.borrows:
        checkpoint.release()
    _trim()
    trim(ops.device)
    _check_vocabulary(tokenizer, model.vocab_size, checkpoint.path)
    pool = PagePool(plan.pages)
    states = States(
        pool,
        kv,
        recurrent,
        layer_states(specs, kv, recurrent),
        rings=rings,
        cache=_prefix_cache(config, plan.chunk, pool, recurrent),
        captures=config.state.captures,
    )
    taps = drafter.taps if drafter is not None else proposer.taps if proposer is not None else ()
    graphs = GraphPool(
        model, states, max_ctx=plan.max_ctx, taps=taps, vocab_size=tokenizer.vocab_size
    )
    if drafting is not None and drafter is not None:
        proposer = build_speculator(drafting, drafter, graphs, states, plan.max_ctx)
    else:
        graphs.capture([proposer.max_nodes if proposer is not None else 1])
    return Engine(
        model,
        states,
        max_ctx=plan.max_ctx,
        max_running=sequences,
        prefill_chunk=plan.chunk,
        max_exact_rows=config.step.max_exact_rows,
        eog=tokenizer.eog,
        proposer=proposer,
        graphs=graphs,
    )


def _no_room(device: torch.device, plan: MemoryPlan, said: str) -> str:
    planned, free = (plan.lasting + plan.step) >> 20, plan.available >> 20
    said = said.partition(" GPU ")[0] or "no more was said"  # torch goes on about its allocator
    return (
        f"the memory of {device} ran out while the model was loaded: {said} Planned were {planned:,} MiB "
        f"of {free:,} free; use a smaller --max-ctx, --cache-type-k q8_0 --cache-type-v q8_0, fewer "
        "sequences (--max-concurrency) or a smaller quantisation, or free memory"
    )


def _prefix_cache(
    config: EngineConfig, chunk: int, pool: PagePool, recurrent: RecurrentStore | None
) -> PrefixCache | None:
    if config.state.prefix_cache == "off":
        return None
    answers = config.state.prefix_cache == "on"
    return PrefixCache(pool, recurrent, grid=chunk, answers=answers)


def _drafter_name(drafting: Drafting | None) -> str | None:
    if drafting is None:
        return None
    if drafting.file is None:
        return "looking up repetitions of the text"
    return drafting.file.path.name


def load_apart(
    path: Path, config: EngineConfig, *, progress: Callable[[int, int], None] | None = None
) -> Loaded:
    """`load` on a thread of its own, which `Loaded.thread` then is: whoever drives the engine uses it."""
    thread = EngineThread()
    try:
        loaded = thread.call(lambda: load(path, config, progress=progress))
    except BaseException:
        thread.close(wait=False)  # an impatient Ctrl-C need not sit the load out
        raise
    return replace(loaded, thread=thread)


def build_language(checkpoint: Checkpoint) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer and the chat template that a file carries (our own when it has none)."""
    vocabulary = Vocabulary(**read_vocabulary(checkpoint.meta))
    tokenizer = Tokenizer(vocabulary)
    source = checkpoint.meta.str("tokenizer.chat_template", default="")
    if not source:
        return tokenizer, builtin_template(checkpoint.meta.arch).template

    def text(token: int | None) -> str | None:
        return None if token is None else vocabulary.tokens[token]

    return tokenizer, ChatTemplate(source, bos=text(vocabulary.bos), eos=text(vocabulary.eos))


def _trim() -> None:
    """Give what loading freed back to the system, where the C library can (glibc keeps it otherwise)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _check_vocabulary(tokenizer: Tokenizer, rows: int, path: Path) -> None:
    """The output may be padded beyond the tokenizer, never shorter."""
    if tokenizer.vocab_size > rows:
        raise CheckpointError(
            f"{path.name} has a vocabulary of {tokenizer.vocab_size} tokens and logits for {rows}; "
            "the file is inconsistent: download or convert it again"
        )


def _check(config: EngineConfig) -> None:
    chunk = config.step.prefill_chunk
    if chunk < 0 or chunk % PAGE_SIZE:
        raise ConfigError(f"--prefill-chunk {chunk} must be 0 or a multiple of {PAGE_SIZE}")
    if config.state.max_concurrency < 1 or config.step.max_exact_rows < 1:
        raise ConfigError("--max-concurrency and --max-exact-rows must be 1 or more")
    for form in (config.state.cache_type_k, config.state.cache_type_v):
        if form not in get_args(KvFormat):
            raise ConfigError(f"{form!r} is no cache type; choose {', '.join(get_args(KvFormat))}")
    if config.runtime.threads < 0 or config.state.max_ctx < 0 or config.state.kv_pages < 0:
        raise ConfigError("--threads, --max-ctx and --kv-pages must be 0 (automatic) or more")
    if config.state.prefix_cache not in get_args(PrefixChoice):
        raise ConfigError(
            f"--prefix-cache {config.state.prefix_cache}: choose {', '.join(get_args(PrefixChoice))}"
        )
    if config.state.captures < 0:
        raise ConfigError("--captures must be 0 or more")
