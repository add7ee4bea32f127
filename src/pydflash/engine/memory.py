"""What fits: weights, KV pages, recurrent slots and reserve against the memory there is.

Decided before anything is allocated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydflash.config import StateConfig, StepConfig
from pydflash.errors import CapacityError
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.state.base import StateSpec, recurrent_specs
from pydflash.state.kv import page_bytes

RESERVE_BYTES = 256 << 20
"""Left for activations, logits, the tokenizer and the rest of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Sizes in bytes; `pages` of PAGE_SIZE positions; `max_ctx` positions of one sequence.

    `slot` is one recurrent state over all layers, `tape` what the widest step keeps until its commit.
    """

    weights: int
    page: int
    pages: int
    max_ctx: int
    available: int
    sequences: int
    slot: int = 0
    slots: int = 0
    tape: int = 0

    @property
    def kv(self) -> int:
        return self.pages * self.page

    @property
    def recurrent(self) -> int:
        return self.slots * self.slot

    def lines(self) -> list[str]:
        """The table printed at start."""
        recurrent = (
            f"recurrent state {_mib(self.recurrent)} ({self.slots} slots of {_mib(self.slot)}), "
            f"step operands {_mib(self.tape)}"
        )
        return [
            f"weights {_mib(self.weights)}",
            f"kv cache {_mib(self.kv)} ({self.pages} pages of {PAGE_SIZE} positions, "
            f"{self.page / PAGE_SIZE / 1024:.1f} KiB a position)",
            *([recurrent] if self.slots else []),
            f"context {self.max_ctx} positions, {self.sequences} at once",
            f"free memory {_mib(self.available)}, reserve {_mib(RESERVE_BYTES)}",
        ]


def plan_memory(
    *,
    weights: int,
    specs: Sequence[StateSpec],
    model_ctx: int,
    state: StateConfig,
    available: int,
    exact_rows: int = StepConfig().max_exact_rows,
) -> MemoryPlan:
    """Choose context, pages and slots. An asked context that does not fit is refused with what would.

    `exact_rows`: exact tokens of the widest step.
    """
    page = page_bytes(specs, state.cache_type_k, state.cache_type_v)
    slot = sum(s.slot_bytes for s in recurrent_specs(specs))
    slots = (1 + state.captures) * state.max_concurrency if slot else 0
    tape = exact_rows * sum(s.tape_bytes for s in recurrent_specs(specs))
    fixed = weights + slots * slot + tape
    room = available - fixed - RESERVE_BYTES
    fits = max(0, room // page) if page else 0
    if fits < 1:
        raise CapacityError(
            f"the model needs {_mib(fixed)} and {_mib(RESERVE_BYTES)} of reserve, "
            f"{_mib(available)} are free; use a smaller model or quantisation, or free memory"
        )
    if state.max_ctx > model_ctx:
        raise CapacityError(
            f"--max-ctx {state.max_ctx} is beyond the {model_ctx} positions the model was made for; "
            f"use --max-ctx {model_ctx} or less"
        )
    if state.max_ctx:
        max_ctx = state.max_ctx
    else:
        # Left to us, the cache takes at most half of the room and never starves a sequence.
        even = fits // 2 // state.max_concurrency
        max_ctx = min(model_ctx, max(1, even) * PAGE_SIZE)
    whole = -(-max_ctx // PAGE_SIZE)
    pages = state.kv_pages or whole * state.max_concurrency
    if pages < whole:
        raise CapacityError(
            f"--kv-pages {pages} holds {pages * PAGE_SIZE} positions, one sequence of {max_ctx} needs "
            f"{whole} pages; raise --kv-pages or use --max-ctx {pages * PAGE_SIZE}"
        )
    if pages > fits:
        raise CapacityError(
            f"a context of {max_ctx} for {state.max_concurrency} sequences needs "
            f"{_mib(pages * page)} of KV cache, {_mib(max(room, 0))} are left beside the weights; "
            f"use --max-ctx {max(1, fits // state.max_concurrency) * PAGE_SIZE} or less, "
            "fewer sequences, or --cache-type-k q8_0 --cache-type-v q8_0"
        )
    return MemoryPlan(
        weights=weights,
        page=page,
        pages=pages,
        max_ctx=max_ctx,
        available=available,
        sequences=state.max_concurrency,
        slot=slot,
        slots=slots,
        tape=tape,
    )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
