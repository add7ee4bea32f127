"""The drafter's side of the composition: from `--draft` to a proposer, its rings and what they weigh."""

import logging
import time
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal

import torch

from pydflash.checkpoint.files import Checkpoint
from pydflash.config import SpecConfig
from pydflash.draft.base import Drafter, DraftRow
from pydflash.draft.dflash import DFlash, ring_bytes
from pydflash.draft.files import DraftFile, open_drafter
from pydflash.draft.fit import TargetFacts, check_fit
from pydflash.draft.lookup import PromptLookup
from pydflash.draft.shipped import shipped_drafter
from pydflash.engine.graphs import GraphPool
from pydflash.engine.profile import measure_steps
from pydflash.engine.states import States
from pydflash.errors import ConfigError
from pydflash.kernels.ops import OpTable
from pydflash.models.base import Model
from pydflash.quant.tensor import QuantTensor
from pydflash.spec.cost import CostModel
from pydflash.spec.ddtree import WIDE
from pydflash.spec.policy import Policy, Settings
from pydflash.spec.speculator import Speculator, draft_sizes
from pydflash.state.ring import RingStore

log = logging.getLogger(__name__)

MOST_NODES = 32
"""Of an adaptive tree, the root included: beyond, a round costs more than any text repays."""
RINGS_PER_SEQUENCE = 2
"""A running sequence's drafter context, and one for the conversation it may leave behind."""
LOOKUP = "lookup"
_TWICE = ("attn_k.weight", "attn_v.weight")
_TABLES = ("selector.pred_cb", "selector.succ_cb")  # held in f16


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Who will draft and how, decided before anything is allocated. Without a file, it is look-ups."""

    file: DraftFile | None
    settings: Settings
    window: int

    def held(self, ops: OpTable) -> int:
        """Bytes of the drafter's weights as these kernels hold them. Those of keys and values serve twice: in
        their layer, and beside the other layers' for the context."""
        total = 0
        for info in () if self.file is None else self.file.checkpoint.tensors.values():
            if info.name.endswith(_TABLES):
                total += 2 * prod(info.shape)
            elif len(info.shape) == 2:
                own = ops.held_bytes(info.format, *info.shape)
                total += 2 * own if info.name.endswith(_TWICE) else own
            else:
                total += max(4 * prod(info.shape), info.nbytes)
        return total

    @property
    def features(self) -> int:
        """Bytes of what one position of the target gives it."""
        config = None if self.file is None else self.file.config
        return 4 * len(config.target_layers) * config.target_hidden if config else 0

    def rings(self, sequences: int) -> int:
        """Bytes of the contexts for so many sequences."""
        if self.file is None:
            return 0
        return RINGS_PER_SEQUENCE * sequences * ring_bytes(self.file.config, self.window)


def choose(spec: SpecConfig, facts: TargetFacts, max_ctx: int) -> Drafting | None:
    """Who drafts for a target. None: nobody. Raises what is wrong with the drafter or the options."""
    _check(spec)
    if spec.no_speculation or spec.draft == "none":
        return None
    path: Path | None = None
    if spec.draft == "auto":
        path = shipped_drafter(facts)
    elif spec.draft != LOOKUP:
        path = Path(spec.draft)
    if path is None:
        return Drafting(file=None, settings=_settings(spec, PromptLookup().slots), window=0)
    file = open_drafter(path)
    for note in (*file.notes, *check_fit(file.config, facts)):
        log.warning("%s: %s", file.path.name, note)
    slots = file.config.slots
    if spec.draft_block_size:
        slots = min(slots, spec.draft_block_size - (not file.config.from_anchor))
    return Drafting(
        file=file, settings=_settings(spec, slots), window=min(spec.draft_ctx_max, max_ctx)
    )


def build_drafter(
    drafting: Drafting, target: Checkpoint, model: Model, ops: OpTable, sequences: int
) -> tuple[Drafter, RingStore | None]:
    """The drafter bound to its target's embeddings and head, and its rings."""
    if drafting.file is None:
        return PromptLookup(), None
    stored = drafting.file.tensors()

    def output_rows(ids: torch.Tensor) -> QuantTensor:
        name = "output.weight" if "output.weight" in target.tensors else "token_embd.weight"
        whole = target.tensor(name)
        return replace(whole, data=whole.data[ids], shape=(len(ids), whole.cols))

    drafter = DFlash(
        drafting.file.config,
        stored.get,
        ops,
        token_embd=model.token_embd,
        output=model.output,
        max_positions=model.max_positions,
        output_rows=output_rows,
    )
    if not ops.borrows:
        drafting.file.checkpoint.release()
    return drafter, drafter.open_store(RINGS_PER_SEQUENCE * sequences, drafting.window)


def build_speculator(
    drafting: Drafting, drafter: Drafter, graphs: GraphPool, states: States, max_ctx: int
) -> Speculator:
    """The proposer, its idea of costs measured on the machine as it is now."""
    cost = CostModel()
    ops = states.kv.ops if graphs.captures else None
    cost.profile(
        measure_steps(graphs, states, min(drafting.settings.max_nodes, max_ctx)),
        _measure_drafts(drafter, states, drafting.settings.max_slots, ahead=ops is not None),
    )
    return Speculator(drafter, Policy(drafting.settings, cost), ops)


def _measure_drafts(
    drafter: Drafter, states: States, most: int, *, ahead: bool
) -> list[tuple[int, int, float]]:
    """(slots, sequences 1, seconds) of drafts after a short context. `ahead`: have what starts them early
    captured, too: in the midst of an answer that would take its time, and be taken for a dear draft."""
    if states.rings is None:
        return []
    context = states.rings.open()
    assert context is not None
    measured = []
    try:
        device = states.kv.ops.device
        context.append(0, torch.zeros(8, states.rings.feature_size, device=device))
        row = DraftRow(tokens=[1] * 9, context=context)
        drafter.score([row], 1, WIDE)  # the first finds cold caches
        for slots in draft_sizes(min(most, drafter.slots)):
            tries = []
            for _ in range(3):
                begun = time.perf_counter()
                drafter.score([row], slots, WIDE)
                tries.append(time.perf_counter() - begun)
            measured.append((slots, 1, min(tries)))
            if ahead:
                drafter.start([row], slots, WIDE, guess=True)
    finally:
        context.close()
    return measured


def _settings(spec: SpecConfig, slots: int) -> Settings:
    mode: Literal["adaptive", "tree", "chain"] = (
        "chain" if spec.draft_chain else "tree" if spec.ddtree_budget else "adaptive"
    )
    budget = spec.ddtree_budget or MOST_NODES - 1
    return Settings(
        mode=mode,
        max_slots=slots,
        max_nodes=1 + (min(budget, slots) if mode == "chain" else budget),
        budget=budget,
        tau=spec.ddtree_tau,
        chain_seed=spec.ddtree_chain_seed,
    )


def _check(spec: SpecConfig) -> None:
    if spec.ddtree and (spec.draft_chain or spec.no_speculation):
        other = "--draft-chain" if spec.draft_chain else "--no-speculation"
        raise ConfigError(f"--ddtree and {other} contradict one another: give one")
    if spec.ddtree_budget < 0 or spec.ddtree_budget > 63:
        raise ConfigError(
            f"--ddtree-budget {spec.ddtree_budget}: give 1 to 63 nodes, or 0 to have it chosen"
        )
    if spec.draft_block_size and not 2 <= spec.draft_block_size <= 64:
        raise ConfigError(f"--draft-block-size {spec.draft_block_size}: give 2 to 64, or 0")
    if spec.draft_ctx_max < 64:
        raise ConfigError(f"--draft-ctx-max {spec.draft_ctx_max}: give 64 positions or more")
    if spec.ddtree_tau is not None and spec.ddtree_tau < 0:
        raise ConfigError(f"--ddtree-tau {spec.ddtree_tau}: give 0 or more")
