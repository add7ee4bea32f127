"""The op surface: what a device must be able to do, with the shape of every argument.

Dimension letters: T tokens in the step (flat), R rows (sequences), P pages per row, E hidden size,
N output features, K input features, H query heads, G kv heads, D head size, F ffn size, V vocabulary,
X experts. Gated DeltaNet: Hk key heads, Hv value heads, Dk and Dv their sizes, W convolution width,
C = 2 Hk Dk + Hv Dv channels.

Every op has a pure PyTorch form in `kernels/ref/` (the specification). A fast form must match it within
a stated bound and be bit-equal to itself for any number of exact rows.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pydflash.errors import UnsupportedError
from pydflash.quant.formats import QuantFormat
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
    starts: Tensor  # int32 [R + 1] cu_q where the tokens are, for kernels that a graph replays
    first: Tensor | None = (
        None  # int32 [R] lowest position a row may see; None: 0. Below it nothing is read
    )


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
    gated: bool = False  # each query head is packed [q | gate]; its result is times sigmoid(gate)
    causal: bool = (
        True  # False: tokens of an exact row, a chain, see the later ones of their row too,
    )
    # as far ahead as the window reaches back


@dataclass(slots=True, kw_only=True, eq=False)
class PagedKV:
    """One layer's keys and values, in pages. K and V are typed apart ("f32", "f16", "bf16", "q8_0").

    k [pages, G, D, PAGE_SIZE] (keys along lanes), v [pages, G, PAGE_SIZE, D]. For q8_0 these are int8 and
    the scales are f16, one for 32 consecutive dimensions of one position:
    k_scale [pages, G, D / 32, PAGE_SIZE], v_scale [pages, G, PAGE_SIZE, D / 32].
    q8_0 here is GGUF's: d = max|x| / 127 rounded to f16, code = round-half-away(x / d) with the unrounded d.
    `buffers` is a backend's own: what it keeps with the layer, whose tensors stay.
    """

    k: Tensor
    v: Tensor
    k_format: str
    v_format: str
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    buffers: object = field(default=None, init=False)


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
    scale: Tensor | None = None  # f32 [N], multiplies x W^T before the bias
    scratch: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Tape:
    """What the exact rows of one step would have done to the recurrent states: the operands, by token.

    k f32 [T, Hk, Dk] normalised keys, delta f32 [T, Hv, Dv], decay f32 [T, Hv], rows f32 [T, C] raw
    convolution inputs; T counts the step's exact tokens. Only rows of several tokens fill their part.
    """

    k: Tensor
    delta: Tensor
    decay: Tensor
    rows: Tensor


@dataclass(slots=True, kw_only=True, eq=False)
class Recurrent:
    """One layer's recurrent states, a slot each, and the tape of the last step.

    conv f32 [slots, W - 1, C] holds the last raw inputs of the convolution, oldest first;
    state f32 [slots, Hv, Dk, Dv]. Both are zero before a sequence's first token.
    `buffers` is a backend's own: what it keeps with the layer from step to step, tapes at fixed addresses.
    """

    conv: Tensor
    state: Tensor
    tape: Tape | None = None
    buffers: object = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaArgs:
    """What is fixed about one Gated DeltaNet layer. Value head h uses key head h mod Hk (GGUF order)."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    conv: Tensor  # f32 [C, W], tap W - 1 meets the token itself; best tap by tap in memory
    a: Tensor  # f32 [Hv], -exp(A_log): log decay = a * softplus(alpha + dt_bias)
    dt_bias: Tensor  # f32 [Hv]
    norm: Tensor  # f32 [Dv]
    eps: float

    @property
    def channels(self) -> int:
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @property
    def inner(self) -> int:
        return self.v_heads * self.v_dim


DELTA_CHUNK = 32
"""Positions that a prefill row advances a recurrent state by at once, on the grid of absolute positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Accepted tokens of a step: `nodes[cu[i]:cu[i + 1]]`, in order, advance slot `slots[i]`."""

    slots: Tensor  # int32 [n]
    nodes: Tensor  # int32 [cu[n]] token indices in the step, rows of the tape
    cu: tuple[int, ...]  # [n + 1]; not in a captured commit, which is repeated with other paths
    starts: Tensor  # int32 [n + 1] cu where the nodes are


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expert:
    """One feed-forward expert: gate_up has its F gate rows first."""

    gate_up: "Weight"  # [2F, E]
    down: "Weight"  # [E, F]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MoeArgs:
    """What is fixed about one mixture of experts.

    Every token's `used` best experts by probability (ties: the lower id) are summed with their
    probabilities as weights, divided by their sum when `normalise`, times `scale`. The shared expert is
    added with weight sigmoid(shared_gate . x), or 1 without a gate.
    """

    router: "Weight"  # [X, E]
    experts: tuple[Expert, ...]
    used: int
    sigmoid: bool = False  # probabilities are sigmoid(logits) instead of softmax(logits)
    normalise: bool = True
    scale: float = 1.0
    act: str = "silu"
    shared: Expert | None = None
    shared_gate: Tensor | None = None  # f32 [E]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guesses:
    """A drafter's scores for R sequences: S slots of K candidates, best first, as `draft.base.DraftScores`.

    roots int32 [R], tokens int32 [R, S, K]. Either logp f32 [R, S, K], and `off` of the same shape for
    parents that are not on the path of best candidates (else they score alike); or pair f32 [R, S, K, K],
    the log-probabilities after each candidate of the slot before: trees are then grown by these alone.
    """

    roots: Tensor
    tokens: Tensor
    logp: Tensor | None = None
    off: Tensor | None = None
    pair: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trees:
    """R trees of up to N nodes in topological order, node 0 the root: `spec.Proposal` on a device.

    tokens, parents (-1 for the root) and depth, int32 [R, N]; counts int32 [R] of nodes; weights f64 [R, N],
    log-probabilities of their paths. Nodes from counts on carry token 0, parent -1 and depth 0.
    """

    tokens: Tensor
    parents: Tensor
    depth: Tensor
    counts: Tensor
    weights: Tensor


MIN_WEIGHT_SUM = 2.0**-14
"""Sums of chosen probabilities are at least this before they divide."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttnLayer:
    """The attention half of a layer: norm, merged q|k|v, attention, output, residual."""

    norm: Tensor  # f32 [E]
    eps: float
    qkv: Weight
    args: AttnArgs
    output: Weight


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DenseLayer:
    """The dense feed-forward half of a layer: norm, merged gate|up, activation, down, residual."""

    norm: Tensor  # f32 [E]
    eps: float
    gate_up: Weight
    down: Weight
    act: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaLayer:
    """The Gated DeltaNet half of a layer: norm, merged qkv|z|alpha|beta, recurrence, output, residual."""

    norm: Tensor  # f32 [E]
    eps: float
    mixed: Weight
    args: DeltaArgs
    output: Weight


class Prepare(Protocol):
    def __call__(self, parts: Sequence[QuantTensor], bias: Tensor | None = None) -> Weight:
        """Merge tensors along rows and put them in the backend's layout. The caller may drop the
        originals afterwards unless the backend's `borrows` is true."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Stands where a backend has no such op."""

    op: str

    def __call__(self, *args: Any) -> Any:
        raise UnsupportedError(
            f"the kernels in use have no {self.op}, which this model needs; run it with --ops ref"
        )


def _as_stored(form: QuantFormat, rows: int, cols: int) -> int:
    return rows * form.row_bytes(cols)


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
        With args.gated, qkv is [T, (2H + 2G) * D] and each head's result is times sigmoid of its gate.
    store_kv(pairs [T, 2G * D], kv, args, batch): k norm, rope and store of K and V at batch.write_slots
        and positions, nothing attended; rows of `pairs` may lie apart (a slice of a wider product).
    attention_layer(x [T, E], layer, kv, batch) -> [T, E]: x + linear(attention(norm_linear(x))); may
        overwrite and return x
    dense_layer(x [T, E], layer, spans) -> [T, E]: linear_add(norm_gated(x), x); may overwrite and return x
    copy_slots(kvs, src int32 [n], dst int32 [n]): move stored positions of all these layers (compaction,
        copy on write); every source is read before any place is written
    delta(mixed [T, C + Hv * Dv + 2 Hv], recurrent, args, batch) -> [T, Hv * Dv]: Gated DeltaNet between
        its projections. `mixed` is [q k v | z | alpha | beta] of each token. Convolution through the
        chain of parents, silu, l2 norm of q and k, the recurrence from the parent's state, norm gated by
        silu(z). Prefill rows and exact rows of one token advance their slot in place; exact rows of
        several leave it as it was and fill `recurrent.tape`.
    delta_layer(x [T, E], layer, recurrent, batch) -> [T, E]: x + linear(delta(norm_linear(x))); may
        overwrite and return x
    delta_commit(recurrent, paths): repeat the state updates of accepted tokens from the tape, the same
        operations on the same operands: bit-equal to rows of one token each.
    delta_commit_all(recurrents, paths): delta_commit of layers of one shape at once, where a backend can
    top(logits [M, V], k) -> values [M, K] descending, ids int64 [M, K], totals [M]: the K = min(k, V) best
        of each row (of equals the lower id first) and the row's logsumexp
    argmax(logits [M, V]) -> tokens int32 [M] (of equals the lowest), values [M], sound bool [M]: whether the
        row has neither NaN nor plus infinity; nothing else holds of a row that is not
    shortlist(logits [M, V], k, knobs [M, 2], keys int64 [M]) -> values [M, K], ids int32 [M, K], marks
        [M, K], totals [M]: the K best of each row by mark, which is the logit, or with noise logit /
        temperature + gumbel, in f32. knobs are 1 / temperature and 1 for noise, else 0; keys are noise keys
        (sampling/noise.py); totals are logsumexp(logit / temperature)
    grow_trees(guesses, budgets int32 [R], nodes, top_k, chain, tau f64 [1] or None) -> Trees of N = nodes:
        for each sequence the best `budgets` nodes besides the root, as `spec.ddtree.build_tree` grows them
        from `top_k` candidates a slot, begun by the best path if `chain`, without paths lighter than the
        best first node by more than `tau`
    calibrate(values [R, S, K], totals [R, S], shift f64 [D + 1, B], low) -> [2, R, S, K]: log-probabilities
        of a drafter's logits (of logsumexp `totals`) as `spec.calibration` maps them, on the best path and
        off it
    plant(trees, batch) writes R trees of N nodes into a step of which they are the first R rows, N tokens
        each: tokens, positions, parents, ancestors. Its base and write_slots are there already, and its
        ancestors are wide enough. Nodes from counts on become roots, which nothing follows
    moe(x [T, E], norm [E], eps, args, spans) -> [T, E]: x + the experts' sum for rms_norm(x) * norm; may
        overwrite and return x
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
    attention_layer: Callable[[Tensor, AttnLayer, PagedKV, StepBatch], Tensor]
    dense_layer: Callable[[Tensor, DenseLayer, tuple[Span, ...]], Tensor]
    copy_slots: Callable[[Sequence[PagedKV], Tensor, Tensor], None]
    formats: frozenset[str]  # weight formats this table multiplies by
    delta: Callable[[Tensor, Recurrent, DeltaArgs, StepBatch], Tensor] = Missing("delta")
    delta_layer: Callable[[Tensor, DeltaLayer, Recurrent, StepBatch], Tensor] = Missing(
        "delta_layer"
    )
    delta_commit: Callable[[Recurrent, Paths], None] = Missing("delta_commit")
    delta_commit_all: Callable[[Sequence[Recurrent], Paths], None] | None = None
    moe: Callable[[Tensor, Tensor, float, MoeArgs, tuple[Span, ...]], Tensor] = Missing("moe")
    scales: bool = False  # True: products honour Weight.scale
    held_bytes: Callable[[QuantFormat, int, int], int] = (
        _as_stored  # of a prepared matrix, by rows, cols
    )
    keeps: int = 0  # bytes of decoded weights that are kept between calls, at most
    # Prepares an embedding table that `embed` alone reads, for the host's memory; None: like any weight.
    host_table: Callable[[QuantTensor], Weight] | None = None
    store_kv: Callable[[Tensor, PagedKV, AttnArgs, StepBatch], None] = Missing("store_kv")
    top: Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]] = Missing("top")
    argmax: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]] = Missing("argmax")
    shortlist: Callable[[Tensor, int, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]] = (
        Missing("shortlist")
    )
    grow_trees: Callable[[Guesses, Tensor, int, int, bool, Tensor | None], Trees] = Missing(
        "grow_trees"
    )
    calibrate: Callable[[Tensor, Tensor, Tensor, int], Tensor] = Missing("calibrate")
    plant: Callable[[Trees, StepBatch], None] = Missing("plant")

    def require(self, *ops: str) -> None:
        """Raise UnsupportedError, before anything is loaded, for the first op this table lacks."""
        for op in ops:
            found = getattr(self, op)
            if isinstance(found, Missing):
                found()
