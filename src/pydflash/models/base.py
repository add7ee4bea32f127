"""Decoder: embed, blocks, norm, head. A forward takes a batch and the state and returns a value."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pydflash.kernels.ops import OpTable, PagedKV, Recurrent, RowKind, Span, StepBatch, Weight
from pydflash.state.base import StateSpec

Tensor = torch.Tensor
LayerState = PagedKV | Recurrent


@dataclass(frozen=True, slots=True)
class StepOutput:
    """logits f32 [M, V], one row for each of the batch's logit_rows; taps {layer: f32 [T, E]}."""

    logits: Tensor
    taps: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a model takes in memory beside its state, in bytes, known before anything is loaded.

    `weights` as the kernels hold them; `decoded` what they keep of them in F32 besides (the reference
    kernels); `position` of the rotary tables; `token` of a step's activations; `logits` of one row;
    `query` of a token's queries in one layer; `on_host` of embeddings that a GPU reads from the host.
    """

    weights: int
    decoded: int
    position: int
    token: int
    logits: int
    query: int = 0
    on_host: int = 0


class Block(Protocol):
    """One layer of the residual stream."""

    def forward(self, x: Tensor, state: Any, batch: StepBatch) -> Tensor:
        """x f32 [T, E] -> f32 [T, E]; may overwrite x. `state` is the kind the block's spec asked for."""


class Model(Protocol):
    """What the engine drives. Every architecture offers all of it."""

    arch: str
    max_positions: int
    nbytes: int
    token_embd: Weight  # a drafter shares both ends
    output: Weight

    @property
    def vocab_size(self) -> int: ...

    def state_specs(self) -> list[StateSpec]: ...

    def forward(
        self, batch: StepBatch, states: Sequence[LayerState], taps: frozenset[int] = frozenset()
    ) -> StepOutput: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Decoder:
    """A plain transformer decoder, whatever its blocks are."""

    arch: str
    ops: OpTable
    token_embd: Weight
    blocks: list[Block]
    output_norm: Tensor
    output: Weight
    eps: float
    max_positions: int
    specs: list[StateSpec]
    nbytes: int

    @property
    def vocab_size(self) -> int:
        return self.output.rows

    def state_specs(self) -> list[StateSpec]:
        return self.specs

    def forward(
        self, batch: StepBatch, states: Sequence[LayerState], taps: frozenset[int] = frozenset()
    ) -> StepOutput:
        """Run the step. A tap is the OUTPUT of that layer: the raw residual stream after it."""
        x = self.ops.embed(self.token_embd, batch.tokens)  # [T, E]
        tapped = {}
        for layer, block in enumerate(self.blocks):
            x = block.forward(x, states[layer], batch)
            if layer in taps:
                tapped[layer] = x.clone()
        wanted = batch.logit_rows
        if not len(wanted):
            return StepOutput(x.new_empty(0, self.vocab_size), tapped)
        if len(wanted) != len(x):
            x = x[wanted]
        # The head's rows are exact rows even for a prompt's last token: one row, one result.
        spans = (Span(0, len(x), RowKind.EXACT),)
        logits = self.ops.norm_linear(x, self.output_norm, self.eps, self.output, spans)
        return StepOutput(logits, tapped)
