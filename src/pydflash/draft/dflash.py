"""DFlash: the drafter network. One pass over a block of masks drafts every position at once.

The target's features of committed positions become keys and values of every layer, once, in a ring; a block
[anchor, MASK...] then attends to them and to itself. The anchor's own features are never visible: the context
ends before it. What it computes may cost speed, never text.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
import torch

from pydflash.draft.base import Context, DraftRow, DraftScores
from pydflash.draft.begun import Begun, Waiting
from pydflash.draft.config import DraftConfig
from pydflash.draft.domino import DominoHead
from pydflash.draft.heads import Found, Head, PlainHead
from pydflash.draft.layer import DraftLayer
from pydflash.draft.markov import MarkovHead
from pydflash.draft.selector import SelectorHead
from pydflash.draft.steps import RowSpan, runs, step
from pydflash.draft.tensors import DraftTensors, Get
from pydflash.errors import CheckpointError
from pydflash.kernels.ops import PAGE_SIZE, Guesses, OpTable, RowKind, Span, StepBatch, Weight
from pydflash.kernels.record import Captures, Recorder, page_widths, recorder
from pydflash.kernels.ref.pointwise import rms_norm
from pydflash.kernels.upload import staged
from pydflash.layers.rope import rope_table
from pydflash.quant.tensor import QuantTensor
from pydflash.state.base import PagedKVSpec
from pydflash.state.kv import page_bytes
from pydflash.state.ring import RingContext, RingStore, ring_pages

Tensor = torch.Tensor

CHUNK = 512
"""Features taken in at once: bounds the memory of a long prompt's."""
_TAKEN = (1, 2, 4, 8, 16, 32)
"""Features for which taking in is captured."""


class DFlash:
    """A drafter. `token_embd` and `output` are the target's; `max_positions` bounds the text's length.

    `output_rows(ids int64 [Vd])` lends rows of the target's output for a reduced vocabulary whose file has
    none of its own. Raises CheckpointError for tensors that do not fit the configuration or the target.
    """

    def __init__(
        self,
        config: DraftConfig,
        get: Get,
        ops: OpTable,
        *,
        token_embd: Weight,
        output: Weight,
        max_positions: int,
        output_rows: Callable[[Tensor], QuantTensor] | None = None,
        record: Recorder | None = None,
    ) -> None:
        ops.require("store_kv", "top")
        if config.hidden != token_embd.cols:
            raise CheckpointError(
                f"the drafter works with {config.hidden} features, the model embeds its tokens with "
                f"{token_embd.cols}; it was made for another model"
            )
        self.config = config
        self._ops = ops
        self._embd = token_embd
        self._max_positions = max_positions + config.block_size
        self._max_pages = -(-self._max_positions // PAGE_SIZE)
        tensors = DraftTensors(get, ops)
        c, width = config, len(config.target_layers) * config.target_hidden
        self._fc = tensors.weight("dflash.fc.weight", cols=width)
        self._hidden_norm = tensors.dense("dflash.hidden_norm.weight", c.hidden)
        self._aux = _aux_norms(tensors, c)
        self._layers, self._pairs = self._build(tensors)
        self._norm = tensors.dense("output_norm.weight", c.hidden)
        self._output, tokens = _vocabulary(tensors, c, output, output_rows)
        self._tokens = None if tokens is None else tokens.cpu().numpy().astype(np.int32)
        self._names = None if tokens is None else tokens.int()  # the same, on the device
        self._mask = tensors.dense_or_none("dflash.mask_embedding", c.hidden)
        self._head: Head = _head(tensors, c, self._norm, token_embd)
        self.nbytes = tensors.nbytes
        self._record = record or recorder(ops)
        self._captures = None if self._record is None else Captures(self._record)
        self._widths = () if self._record is None else page_widths(self._max_pages)

    @property
    def name(self) -> str:
        return self._head.name

    @property
    def slots(self) -> int:
        return self.config.slots

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.target_layers

    def open_store(self, contexts: int, window: int, kv_format: str = "f16") -> RingStore:
        """Rings for `contexts` sequences that remember `window` positions each."""
        c = self.config
        return RingStore(
            ring_specs(c),
            contexts=contexts,
            window=window,
            tail=c.block_size,
            feature_size=len(c.target_layers) * c.target_hidden,
            kv_format=kv_format,
            ops=self._ops,
            scratch=self._captures is not None,
        )

    def catch_up(self, contexts: Sequence[Context]) -> None:
        """Take in the target features that wait in these contexts."""
        for part in _parts([cast("RingContext", c) for c in contexts]):
            self._take_in(part)

    def score(self, rows: Sequence[DraftRow], slots: int, top_k: int) -> list[DraftScores]:
        """At most `slots` positions of at most `top_k` candidates each; a row without context gets nothing.

        A context that lost features drafts from what it has, as if the text went on where it ends.
        """
        begun = self._begin(rows, slots, top_k)
        if begun is None:
            return [DraftScores.nothing() for _ in rows]
        return begun.scores()

    def start(
        self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
    ) -> Waiting | None:
        """The device goes on by itself where its work is captured. The ring is as `score` leaves it."""
        if self._record is None:
            return None
        begun = self._begin(rows, slots, top_k, guess=guess)
        return None if begun is None else Waiting(begun)

    def _begin(
        self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
    ) -> Begun | None:
        """Everything that the device does for a draft. None: there is no row to draft for. `guess`: score it
        there, too, if the head can."""
        slots = min(slots, self.slots)
        guess = guess and self._head.guesses is not None
        length = slots if self.config.from_anchor else slots + 1
        live: list[int] = []
        spans: list[RowSpan] = []
        if slots < 1 or top_k < 1:
            return None
        self.catch_up([row.context for row in rows if row.context is not None])
        for i, row in enumerate(rows):
            if row.context is None:
                continue
            context = cast("RingContext", row.context)
            start = min(context.length, len(row.tokens) - 1)
            if start + length <= self._max_positions:
                live.append(i)
                block = (row.tokens[-1],) + (self.config.mask_token,) * (length - 1)
                spans.append(RowSpan(context, start, length, block))
        if not live:
            return None
        found = self._best(spans, length, top_k, guess)
        return Begun(
            head=self._head,
            tokens=self._tokens,
            rows=len(rows),
            live=live,
            anchors=[rows[i].tokens[-1] for i in live],
            slots=slots,
            top_k=top_k,
            found=found[:4],
            guesses=Guesses(
                roots=found[4],
                tokens=found[5],
                logp=found[6],
                pair=found[7] if len(found) > 7 else None,
            )
            if len(found) > 4
            else None,
        )

    def _build(self, tensors: DraftTensors) -> tuple[list[DraftLayer], list[Weight]]:
        """The layers; and products for the context's keys and values, one for all layers if they share an
        input."""
        c = self.config
        rope = rope_table(c.rope, self._max_positions, None, self._ops.device)
        layers = [DraftLayer(tensors, c, i, rope) for i in range(c.layers)]
        names = [(f"blk.{i}.attn_k.weight", f"blk.{i}.attn_v.weight") for i in range(c.layers)]
        merged = names if c.context_norm else [tuple(n for pair in names for n in pair)]
        return layers, [tensors.weight(*group, cols=c.hidden, bias=True) for group in merged]

    def _take_in(self, part: list[tuple[RingContext, int, Tensor]]) -> None:
        """Store keys and values for features f32 [n, F] of contexts at positions."""
        features = part[0][2] if len(part) == 1 else torch.cat([f for _, _, f in part])
        spans = [RowSpan(context, at, f.shape[0]) for context, at, f in part]
        store, count = part[0][0].store, features.shape[0]
        width = next((n for n in _TAKEN if n >= count), None)
        done = None
        if self._captures is not None and width is not None:
            made = runs(spans, widths=self._widths, pad=width)
            flat = staged(made.values, self._ops.device)
            done = self._captures.run(
                (store, width, made.pages),
                [features, flat],
                self._ops.device,
                lambda x: self._store(x[0], made.view(x[1]), store),
                blank=lambda: [features.new_zeros(width, features.shape[1]), flat],
            )
        if done is None:
            self._store(features, step(spans, self._ops.device), store)
        for context, _, f in part:
            context.stored(f.shape[0])

    def _store(self, features: Tensor, batch: StepBatch, store: RingStore) -> list[Tensor]:
        """Every layer's keys and values from features f32 [T, F], at the batch's places."""
        c, ops = self.config, self._ops
        if self._aux is not None:
            slices = features.view(len(features), len(self._aux), -1)
            features = rms_norm(slices, self._aux, c.eps).flatten(1)
        x = ops.linear(features.contiguous(), self._fc, batch.spans)
        if c.context_norm:
            x = rms_norm(x, self._hidden_norm, c.eps)
            pairs = [
                ops.norm_linear(x, layer.attention.norm, c.eps, weight, batch.spans)
                for layer, weight in zip(self._layers, self._pairs, strict=True)
            ]
        else:
            every = ops.norm_linear(x, self._hidden_norm, c.eps, self._pairs[0], batch.spans)
            pairs = list(every.chunk(c.layers, -1))
        for layer, kv, pair in zip(self._layers, store.kv.layers, pairs, strict=True):
            ops.store_kv(pair, kv, layer.attention.args, batch)
        return []

    def _best(self, spans: list[RowSpan], length: int, top_k: int, guess: bool) -> list[Tensor]:
        """The last hidden states of the drafted slots, f32 [R * slots, E], `top` of their logits, and the
        parts of the head's guesses, if it makes any."""
        store, device = spans[0].context.store, self._ops.device
        made = runs(spans, widths=self._widths)

        def work(x: list[Tensor]) -> list[Tensor]:
            batch = made.view(x[0])
            hidden = self._run(batch, store, length)
            best = self._ops.top(self._logits(hidden), max(top_k, self._head.width))
            anchors = batch.tokens.view(-1, length)[:, 0]
            return [hidden, *best, *(self._guessed(anchors, hidden, best, top_k) if guess else ())]

        flat = staged(made.values, device)
        found = None
        if self._captures is not None:
            key = (store, len(spans), length, top_k, guess, made.pages)
            found = self._captures.run(key, [flat], device, work)
        return work([flat.to(device)]) if found is None else found

    def _guessed(
        self, anchors: Tensor, hidden: Tensor, best: tuple[Tensor, ...], top_k: int
    ) -> list[Tensor]:
        """Roots, tokens, log-probabilities and perhaps those of pairs: the head's guesses."""
        assert self._head.guesses is not None
        logits, ids, total = best
        found = Found(
            anchors=anchors,
            hidden=hidden,
            ids=ids,
            tokens=ids.int() if self._names is None else self._names[ids],
            logits=logits,
            total=total,
        )
        made = self._head.guesses(found, top_k)
        parts = (made.roots.contiguous(), made.tokens, made.logp, made.pair)
        return [part for part in parts if part is not None]

    def _run(self, batch: StepBatch, store: RingStore, length: int) -> Tensor:
        """Hidden states of the drafted slots before the last norm, f32 [R * slots, E]."""
        x = self._ops.embed(self._embd, batch.tokens)
        if self._mask is not None:
            x.view(-1, length, x.shape[1])[:, 1:] = self._mask
        for layer, kv in zip(self._layers, store.kv.layers, strict=True):
            x = layer.forward(x, kv, batch, length)
        if self.config.from_anchor:
            return x
        return x.view(-1, length, x.shape[1])[:, 1:].reshape(-1, x.shape[1])

    def _logits(self, hidden: Tensor) -> Tensor:
        c = self.config
        spans = (Span(0, hidden.shape[0], RowKind.EXACT),)
        logits = self._ops.norm_linear(hidden, self._norm, c.eps, self._output, spans)
        if c.logit_scale != 1.0:
            logits.mul_(c.logit_scale)
        if c.logit_softcap is not None:
            logits.div_(c.logit_softcap).tanh_().mul_(c.logit_softcap)
        return logits


def ring_specs(config: DraftConfig) -> list[PagedKVSpec]:
    """What each layer keeps of the context."""
    return [
        PagedKVSpec(layer=i, kv_heads=config.kv_heads, head_dim=config.head_dim)
        for i in range(config.layers)
    ]


def ring_bytes(config: DraftConfig, window: int, kv_format: str = "f16") -> int:
    """Bytes of one sequence's ring."""
    page = page_bytes(ring_specs(config), kv_format, kv_format)
    return ring_pages(window, config.block_size) * page


def _parts(contexts: Sequence[RingContext]) -> Iterator[list[tuple[RingContext, int, Tensor]]]:
    """Waiting features in groups of about CHUNK rows, each with its context and first position."""
    group: list[tuple[RingContext, int, Tensor]] = []
    size = 0
    for context in contexts:
        features = context.take()
        if features is None:
            continue
        at = context.length
        for start in range(0, features.shape[0], CHUNK):
            part = features[start : start + CHUNK]
            count = part.shape[0]
            group.append((context, at, part))
            at += count
            size += count
            if size >= CHUNK:
                yield group
                group, size = [], 0
    if group:
        yield group


def _aux_norms(tensors: DraftTensors, c: DraftConfig) -> Tensor | None:
    """Norms of the taps, f32 [n, Et], where the file has them."""
    names = [f"dflash.aux_hidden_norm.{j}.weight" for j in range(len(c.target_layers))]
    if not tensors.has(names[0]):
        return None
    return torch.stack([tensors.dense(name, c.target_hidden) for name in names])


def _vocabulary(
    tensors: DraftTensors,
    c: DraftConfig,
    output: Weight,
    output_rows: Callable[[Tensor], QuantTensor] | None,
) -> tuple[Weight, Tensor | None]:
    """The head's weight, and the target id of each of its rows (None: they are the target's own)."""
    if c.draft_vocab is None:
        if output.cols != c.hidden:
            raise CheckpointError(
                f"the drafter works with {c.hidden} features, the model's output with {output.cols}; "
                "it was made for another model"
            )
        return output, None
    ids = torch.arange(c.draft_vocab, device=tensors.ops.device)
    ids = ids + tensors.integers("d2t", c.draft_vocab)
    if not 0 <= int(ids.min()) <= int(ids.max()) < min(c.vocab, output.rows):
        raise CheckpointError(
            f"the drafter's d2t names tokens beyond the vocabulary of {c.vocab}; "
            "it was made for another model"
        )
    if tensors.has("output.weight"):
        own = tensors.weight("output.weight", cols=c.hidden)
    elif output_rows is not None:
        own = tensors.rows(output_rows(ids.cpu()))
    else:
        raise CheckpointError(
            "the drafter has a reduced vocabulary but no output.weight; convert it again"
        )
    if own.rows != c.draft_vocab or own.cols != c.hidden:
        raise CheckpointError(
            f"the drafter's output is [{own.rows}, {own.cols}], its configuration implies "
            f"[{c.draft_vocab}, {c.hidden}]; download or convert it again"
        )
    return own, ids


def _head(tensors: DraftTensors, c: DraftConfig, norm: Tensor, token_embd: Weight) -> Head:
    if c.selector is not None:
        return SelectorHead(tensors, c, norm)
    if c.markov is not None:
        return MarkovHead(tensors, c)
    if c.domino is not None:
        return DominoHead(tensors, c, norm, token_embd)
    return PlainHead()
