"""The op surface: what a device must be able to do, with the shape of every argument.

Dimension letters: T tokens in the step (flat), R rows (sequences), P pages per row, E hidden size,
N output features, K input features, H query heads, G kv heads, D head size, F ffn size, V vocabulary.

Every op has a pure PyTorch form in `kernels/ref/` (the specification). A fast form must match it within
a stated bound and be bit-equal to itself for any number of exact rows.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor

PAGE_SIZE = 32
"""Positions in a KV page. Attention walks keys page by page at absolute positions, so this number is
part of the reduction order: changing it changes the last bits of every result."""


class RowKind(enum.IntEnum):
    """Which kernels a row takes: by what it is, never by how many there are."""

    PREFILL = 0
    EXACT = 1


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start..stop of a step that are one product: all exact rows, or one prefill chunk."""

    start: int
    stop: int
    kind: RowKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One step for the model: flat tokens, rows as ranges. Built only by `engine/batch.py`.

    Prefill, decode and verify share this layout. Exact rows come first, then prefill chunks.
    """

    tokens: Tensor  # int32 [T]
    positions: Tensor  # int32 [T] absolute position
    row_of: Tensor  # int32 [T] row of each token
    kinds: tuple[RowKind, ...]  # [R]
    cu_q: tuple[int, ...]  # [R + 1] first token of each row
    base: Tensor  # int32 [R] positions already stored before this step
    page_table: Tensor  # int32 [R, P] physical page of each logical page
    write_slots: Tensor  # int32 [T] physical place (page * PAGE_SIZE + lane) of the token's K and V
    slots: Tensor  # int32 [R] recurrent state slot
    ancestors: (
        Tensor | None
    )  # int32 [T, A] write_slots of positions base.. up to the token itself, -1 pads
    parents: Tensor | None  # int32 [T] token index of the parent in this step, -1 for a row's first
    logit_rows: Tensor  # int64 [M] tokens whose logits are wanted
    spans: tuple[Span, ...]  # the products this step is made of, in token order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rope:
    """A rotary table for every position. cos and sin are f32 [positions, dims / 2].

    `interleaved` pairs (0, 1), (2, 3)...; otherwise the halves pair (0, dims / 2), (1, dims / 2 + 1)...
    Dimensions at `dims` and beyond are left alone.
    """

    cos: Tensor
    sin: Tensor
    dims: int
    interleaved: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttnArgs:
    """What is fixed about one attention layer."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    q_norm: Tensor | None = None  # f32 [D], per-head RMS norm before rope
    k_norm: Tensor | None = None  # f32 [D]
    eps: float = 1e-6
    window: int | None = None  # a query sees itself and the window - 1 positions before it
    softcap: float | None = None  # scores = cap * tanh(scores / cap)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedKV:
    """One layer's keys and values, in pages. K and V are typed apart ("f32", "f16", "bf16", "q8_0").

    k [pages, G, D, PAGE_SIZE] (keys along lanes), v [pages, G, PAGE_SIZE, D]. For q8_0 these are int8 and
    the scales are f16, one for 32 consecutive dimensions of one position:
    k_scale [pages, G, D / 32, PAGE_SIZE], v_scale [pages, G, PAGE_SIZE, D / 32].
    q8_0 here is GGUF's: d = max|x| / 127 rounded to f16, code = round-half-away(x / d) with the unrounded d.
    """

    k: Tensor
    v: Tensor
    k_format: str
    v_format: str
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Weight:
    """A (merged) product operand in a backend's own layout: y = x W^T + bias, W [N, K].

    `parts` are the row counts of the merged tensors in order, `formats` their names. `packed` belongs to the
    backend that made it. `nbytes` counts what is held in memory.
    """

    rows: int
    cols: int
    parts: tuple[int, ...]
    formats: tuple[str, ...]
    nbytes: int
    packed: object
    bias: Tensor | None = None  # f32 [N]
    scratch: dict[str, object] = field(default_factory=dict)


class Prepare(Protocol):
    def __call__(self, parts: Sequence[QuantTensor], bias: Tensor | None = None) -> Weight:
        """Merge tensors along rows and put them in the backend's layout. The caller may drop the
        originals afterwards unless the backend's `borrows` is true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """The ops of one device. Activations are f32 [T, ...] contiguous; outputs are new tensors unless said.

    prepare(parts, bias) -> Weight
    embed(weight, tokens int32 [T]) -> f32 [T, K]: rows of a weight, dequantised
    linear(x [T, K], w, spans) -> [T, N]
    linear_add(x [T, K], w, residual [T, N], spans) -> [T, N]: residual + x W^T; may overwrite and
        return residual
    norm_linear(x [T, K], norm [K], eps, w, spans) -> [T, N]: rms_norm(x) * norm, then the product
    norm_gated(x [T, E], norm [E], eps, w, act, spans) -> [T, F]: rms norm, merged gate|up product
        (w.rows = 2F, gate rows first), act(gate) * up; act "silu" or "gelu" (tanh form)
    attention(qkv [T, (H + 2G) * D], kv, args, batch) -> [T, H * D]: q/k norm, rope, store of this
        step's K and V, then attention over the pages. Keys are read back after the store.
    copy_slots(kv, src int32 [n], dst int32 [n]): move stored positions (compaction, copy on write)
    """

    name: str
    device: torch.device
    borrows: bool  # True: a Weight keeps views of the tensors it was made from
    prepare: Prepare
    embed: Callable[[Weight, Tensor], Tensor]
    linear: Callable[[Tensor, Weight, tuple[Span, ...]], Tensor]
    linear_add: Callable[[Tensor, Weight, Tensor, tuple[Span, ...]], Tensor]
    norm_linear: Callable[[Tensor, Tensor, float, Weight, tuple[Span, ...]], Tensor]
    norm_gated: Callable[[Tensor, Tensor, float, Weight, str, tuple[Span, ...]], Tensor]
    attention: Callable[[Tensor, PagedKV, AttnArgs, StepBatch], Tensor]
    copy_slots: Callable[[PagedKV, Tensor, Tensor], None]
    formats: frozenset[str]  # weight formats this table multiplies by
