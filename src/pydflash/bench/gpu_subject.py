"""Subject: what the parts of the GPU bench share: the loaded model, clocks, ceilings, and where to speak."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from pydflash.bench.ceilings import Ceilings
from pydflash.bench.harness import Rig
from pydflash.bench.llama_cpp import pattern
from pydflash.bench.session import Session
from pydflash.bench.stopwatch import Stopwatch
from pydflash.config import EngineConfig
from pydflash.kernels.upload import trim
from pydflash.spec.speculator import Speculator

CHUNK = 2048  # prompt tokens of a step, where the user does not say
BUDGET = 22  # drafted nodes of a round, where the user does not say
DEPTH = 512  # positions stored beforehand, as far as the context allows
SETTLE = 3  # steps before any that counts: they capture and compile


@dataclass(slots=True, kw_only=True)
class Before:
    """Bytes of the device before the load: `used` by all, `reserved` of them by torch; `context` were used
    when the process had only just begun."""

    used: int = 0
    reserved: int = 0
    context: int = 0

    @classmethod
    def now(cls, device: torch.device) -> "Before":
        """Peaks are counted from here on, and nothing is held that need not be."""
        if device.type != "cuda":
            return cls()
        gc.collect()
        trim(device)
        torch.cuda.reset_peak_memory_stats(device)
        free, total = torch.cuda.mem_get_info(device)
        return cls(used=total - free, reserved=torch.cuda.memory_reserved(device))


@dataclass(slots=True, kw_only=True)
class Subject:
    """A loaded model under measurement."""

    rig: Rig
    floors: Ceilings
    say: Callable[[str], None]
    repeats: int = 20
    before: Before = field(default_factory=Before)

    @property
    def watch(self) -> Stopwatch:
        return Stopwatch(self.rig.ops.device)

    @property
    def depth(self) -> int:
        return shallow(self.rig.ctx)

    @property
    def speculator(self) -> Speculator | None:
        """The proposer, if a drafter network drafts."""
        proposer = self.rig.engine.proposer
        drafts = isinstance(proposer, Speculator) and bool(proposer.taps)
        return proposer if isinstance(proposer, Speculator) and drafts else None

    def session(
        self, tokens: int, count: int, *, sequences: int = 1, speculate: bool = False
    ) -> Session:
        """Answers to prompts of `tokens`, each its own."""
        self.rig.clear()  # the engine may need every page
        prompts = [pattern(tokens, 10007 * i, self.rig.vocab_size) for i in range(sequences)]
        return Session(self.rig.engine, prompts, count, speculate=speculate)


def configured(config: EngineConfig) -> EngineConfig:
    """The user's options with this bench's own defaults: prompts are read whole, every time anew, and trees
    have a path through every slot, which a drafter that knows nothing would not give them."""
    step, spec = config.step, config.spec
    has_drafter = spec.draft not in ("auto", "lookup", "none") and not spec.no_speculation
    return replace(
        config,
        step=replace(step, prefill_chunk=step.prefill_chunk or CHUNK),
        state=replace(config.state, prefix_cache="off"),
        spec=replace(
            spec,
            no_speculation=not has_drafter,
            ddtree_chain_seed=has_drafter,
            ddtree_budget=spec.ddtree_budget or (BUDGET if has_drafter else 0),
        ),
    )


def shallow(ctx: int) -> int:
    """Depth of most steps: a quarter of a small context."""
    return min(DEPTH, ctx // 4 // 32 * 32)


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
