"""What fits: a plan that says where every byte goes, against the memory there is.

Decided before anything is allocated: weights, rotary tables, KV pages, recurrent slots, and what the widest
step takes while it runs.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pydflash.config import StateConfig, StepConfig
from pydflash.engine.graphs import TOKENS
from pydflash.errors import CapacityError
from pydflash.kernels.chunks import chunks
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.models.base import Footprint
from pydflash.state.base import StateSpec, recurrent_specs
from pydflash.state.kv import page_bytes

RESERVE_BYTES = 256 << 20
"""Left for what is not the model's: torch, the tokenizer, Python, the buffers of libraries."""
GPU_RESERVE_BYTES = 1 << 30
"""Left on a GPU: compiled kernels, the workspace of libraries, gaps between blocks, a matrix decoded for a
prompt (up to 256 MiB), and steps captured while serving."""

CPU_CHUNK, GPU_CHUNK = 256, 1024
"""Prompt tokens of a step: a GPU is busy only with many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Sizes in bytes; `pages` of PAGE_SIZE positions; `max_ctx` positions of one sequence.

    `slot` is one recurrent state over all layers; `tape` what the widest step keeps until its commit,
    `activations` and `logits` what it takes while it runs.
    """

    weights: int
    decoded: int
    rope: int
    page: int
    pages: int
    max_ctx: int
    available: int
    sequences: int
    slot: int
    slots: int
    tape: int
    activations: int
    logits: int
    taps: int = 0  # what of the widest step goes to the drafter
    drafter: int = 0  # its weights
    rings: int = 0  # what it remembers of every sequence
    graphs: int = 0  # what captured steps keep of their results, and the places that padding writes
    reserve: int = RESERVE_BYTES
    chunk: int = 256  # prompt tokens of a step
    on_host: int = 0  # embeddings that a GPU reads from the host's memory: no part of the sums

    @property
    def kv(self) -> int:
        return self.pages * self.page

    @property
    def recurrent(self) -> int:
        return self.slots * self.slot

    @property
    def lasting(self) -> int:
        """What is held from load on."""
        own = self.weights + self.decoded + self.rope + self.kv + self.recurrent
        return own + self.drafter + self.rings + self.graphs

    @property
    def step(self) -> int:
        """What the widest step adds for a while."""
        return self.tape + self.activations + self.logits + self.taps

    def lines(self) -> list[str]:
        """The table printed at start."""
        decoded = f", {_mib(self.decoded)} decoded by the reference kernels" if self.decoded else ""
        recurrent = (
            f"recurrent state {_mib(self.recurrent)} ({self.slots} slots of {_mib(self.slot)})"
        )
        drafter = f"drafter {_mib(self.drafter)}, its context {_mib(self.rings)}"
        taps = f", the drafter's features {_mib(self.taps)}" if self.taps else ""
        tape = f", operands until the commit {_mib(self.tape)}" if self.tape else ""
        on_host = f", embeddings on the host {_mib(self.on_host)}" if self.on_host else ""
        return [
            f"weights {_mib(self.weights)}{decoded}{on_host}, rotary tables {_mib(self.rope)}",
            f"kv cache {_mib(self.kv)} ({self.pages} pages of {PAGE_SIZE} positions, "
            f"{self.page / PAGE_SIZE / 1024:.1f} KiB a position)",
            *([recurrent] if self.slots else []),
            *([drafter] if self.drafter else []),
            *([f"captured steps {_mib(self.graphs)}"] if self.graphs else []),
            f"widest step {_mib(self.step)}: activations {_mib(self.activations)}, "
            f"logits {_mib(self.logits)}{taps}{tape}",
            f"context {self.max_ctx} positions, {self.sequences} at once",
            f"in all {_mib(self.lasting + self.step)} of {_mib(self.available)} free, "
            f"reserve {_mib(self.reserve)}",
        ]


def plan_memory(
    *,
    footprint: Footprint,
    specs: Sequence[StateSpec],
    model_ctx: int,
    state: StateConfig,
    available: int,
    step: StepConfig | None = None,
    nodes: int = 1,
    drafter: int = 0,
    rings: int = 0,
    features: int = 0,
    on_gpu: bool = False,
) -> MemoryPlan:
    """Choose context, pages and slots. An asked context that does not fit is refused with what would.

    `nodes`: of the widest proposal. `drafter` and `rings`: bytes of its weights and of its contexts;
    `features`: of what one position gives it. `on_gpu`: steps are captured, and the reserve is a GPU's.
    """
    step = step or StepConfig()
    sequences = state.max_concurrency
    page = page_bytes(specs, state.cache_type_k, state.cache_type_v)
    slot = sum(s.slot_bytes for s in recurrent_specs(specs))
    slots = (1 + state.captures) * sequences if slot else 0
    exact = step.max_exact_rows + sequences * nodes
    tape = exact * sum(s.tape_bytes for s in recurrent_specs(specs))
    chunk = step.prefill_chunk or (GPU_CHUNK if on_gpu else CPU_CHUNK)
    activations = (exact + chunk) * footprint.token
    logits = (sequences * nodes + 1) * footprint.logits
    # The layers' outputs, those of a row side by side, and what its context takes.
    taps = 3 * (exact + chunk) * features
    fixed = footprint.weights + footprint.decoded + slots * slot + tape + activations + logits
    graphs, reserve = 0, RESERVE_BYTES
    # Attention over a long context is done in chunks at once on a GPU, and each leaves its sum.
    parted = exact * footprint.query if on_gpu else 0
    if on_gpu:
        widths = [n for n in TOKENS if n < 2 * sequences * nodes]
        graphs = sum(widths) * footprint.logits + page + slot
        reserve = GPU_RESERVE_BYTES
    fixed += taps + drafter + rings + graphs
    room = available - fixed - reserve
    # A page of context: PAGE_SIZE positions of every sequence, and of the tables they share.
    each = sequences * page + PAGE_SIZE * footprint.position

    def taken(count: int) -> int:
        return count * each + chunks(count * PAGE_SIZE) * parted

    fits = bisect_right(range(1, max(0, room) // each + 1), room, key=taken)
    if fits < 1:
        raise CapacityError(
            f"the model needs {_mib(fixed)} and {_mib(reserve)} of reserve, "
            f"{_mib(available)} are free; use a smaller model or quantisation, or free memory"
        )
    if state.max_ctx > model_ctx:
        raise CapacityError(
            f"--max-ctx {state.max_ctx} is beyond the {model_ctx} positions the model was made for; "
            f"use --max-ctx {model_ctx} or less"
        )
    # Left to us, the cache takes at most half of the room and never starves a sequence.
    max_ctx = state.max_ctx or min(model_ctx, max(1, fits // 2) * PAGE_SIZE)
    whole = -(-max_ctx // PAGE_SIZE)
    pages = state.kv_pages or whole * sequences
    if pages < whole:
        raise CapacityError(
            f"--kv-pages {pages} holds {pages * PAGE_SIZE} positions, one sequence of {max_ctx} needs "
            f"{whole} pages; raise --kv-pages or use --max-ctx {pages * PAGE_SIZE}"
        )
    rope = max_ctx * footprint.position
    parts = chunks(max_ctx) * parted
    if pages * page + rope + parts > room:
        raise CapacityError(
            f"a context of {max_ctx} for {sequences} sequences needs "
            f"{_mib(pages * page + rope + parts)} of KV cache and tables, {_mib(max(room, 0))} are left "
            f"beside the weights; use --max-ctx {fits * PAGE_SIZE} or less, "
            "fewer sequences, or --cache-type-k q8_0 --cache-type-v q8_0"
        )
    return MemoryPlan(
        weights=footprint.weights,
        decoded=footprint.decoded,
        rope=rope,
        page=page,
        pages=pages,
        max_ctx=max_ctx,
        available=available,
        sequences=sequences,
        slot=slot,
        slots=slots,
        tape=tape,
        activations=activations + parts,
        logits=logits,
        taps=taps,
        drafter=drafter,
        rings=rings,
        graphs=graphs,
        reserve=reserve,
        chunk=chunk,
        on_host=footprint.on_host,
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
