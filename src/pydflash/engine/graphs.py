"""GraphPool: the model's forward, captured for steps of exact rows where the device has graphs.

A captured forward stands for every step that fits its bucket: the rest is padding, which only ever touches a
scratch page and a scratch slot. Its results are those of the eager forward, bit for bit (kernels are
row-invariant). Prompt chunks, and steps beyond the buckets, run eagerly; without graphs, all do.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch

from pydflash.device import Scarce
from pydflash.engine import batch as batches
from pydflash.engine.batch import RowWork
from pydflash.engine.columns import Columns, StepShape, view
from pydflash.engine.states import States
from pydflash.kernels.ops import PAGE_SIZE, Recurrent, StepBatch, Tape, Trees
from pydflash.kernels.record import Recorder, page_widths, recorder
from pydflash.kernels.upload import staged
from pydflash.models.base import Model
from pydflash.sampling.device import Best

log = logging.getLogger(__name__)
Tensor = torch.Tensor

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
"""Widths that are captured: close enough that padding costs little, few enough to keep."""


@dataclass(frozen=True, slots=True)
class Ran:
    """logits f32 [M, V]; features f32 [T, taps * E], the tapped layers side by side, None without taps.

    `lasts`: nothing overwrites them; else the next step does. `best`: `OpTable.argmax` of the logits, where
    it is part of what was captured.
    """

    logits: Tensor
    features: Tensor | None
    lasts: bool
    best: Best | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """The most that a captured forward takes: tokens, rows, pages of a row."""

    tokens: int
    rows: int
    pages: int

    @property
    def shape(self) -> StepShape:
        """With a row for the padding. No node lies deeper than there are tokens."""
        T = self.tokens
        return StepShape(tokens=T, rows=self.rows + 1, pages=self.pages, depth=T, logits=T)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """A captured forward: its input, how to repeat it, and where it leaves what."""

    shape: StepShape
    flat: Tensor
    step: StepBatch  # what lies there
    replay: Callable[[], None]
    logits: Tensor
    best: Best
    features: Tensor | None
    tapes: list[tuple[Recurrent, Tape | None]]


class GraphPool:
    """Runs steps. `taps`: layers whose outputs a drafter wants, in this order."""

    def __init__(
        self,
        model: Model,
        states: States,
        *,
        max_ctx: int,
        taps: Many[int] = (),
        vocab_size: int | None = None,
        most_tokens: int = TOKENS[-1],
        record: Recorder | None = None,
    ) -> None:
        """`vocab_size`: the tokenizer's, when the model's logits are padded beyond it. `most_tokens`: of a
        step that is worth capturing. `record`: by default, the device's own."""
        self.device = states.kv.ops.device
        self.taps = tuple(taps)
        self.vocab_size = vocab_size or model.vocab_size
        self._model = model
        self._states = states
        self._recurrent = [s for s in states.layers if isinstance(s, Recurrent)]
        self._record = record or recorder(states.kv.ops)
        self._scratch = states.scratch
        self._tokens = tuple(n for n in TOKENS if n <= most_tokens)
        self._pages = page_widths(-(-max_ctx // PAGE_SIZE))
        self.captures = self._record is not None and self._scratch is not None  # else all is eager
        self._graphs: dict[Bucket, _Graph | None] = {}

    @property
    def captured(self) -> int:
        """Forwards captured so far."""
        return len(self._graphs)

    def forward(self, work: Many[RowWork], trees: Trees | None = None) -> Ran:
        """One step over the model. `trees`: what takes the place of the rows' proposals, on the device."""
        cols = batches.gather(work)
        bucket = self.bucket(cols)
        graph = None if bucket is None else self._graph(bucket)
        return self._eager(cols, trees) if graph is None else self._repeat(graph, cols, trees)

    def repeater(self, work: Many[RowWork]) -> Callable[[], object]:
        """What repeats this step on the device alone, nothing gathered or copied again. For measuring."""
        cols = batches.gather(work)
        bucket = self.bucket(cols)
        graph = None if bucket is None else self._graph(bucket)
        if graph is None:
            return lambda: self._eager(cols)
        self._repeat(graph, cols)
        return graph.replay

    def bucket(self, cols: Columns) -> Bucket | None:
        """The captured forward that a step takes; None: it runs eagerly."""
        if not self.captures or not cols.wants_all:
            return None
        tokens = next((n for n in self._tokens if n >= len(cols.tokens)), None)
        need = max(map(len, cols.tables))
        pages = next((n for n in self._pages if n >= need), None)
        if tokens is None or pages is None:
            return None
        rows = 1 << (len(cols.kinds) - 1).bit_length()
        return Bucket(tokens, rows, pages)

    def capture(self, tokens: Many[int], rows: int = 1) -> None:
        """Capture forwards before they are asked for, the widest first: later ones fit in its memory."""
        if not self.captures:
            return
        most = max(self._tokens)
        widths = {min(n for n in self._tokens if n >= count) for count in tokens if count <= most}
        for count in sorted(widths, reverse=True):
            self._graph(Bucket(count, rows, self._pages[0]))

    def _eager(self, cols: Columns, trees: Trees | None = None) -> Ran:
        batch = batches.place(cols, self.device)
        if trees is not None:
            self._states.kv.ops.plant(trees, batch)
        output = self._model.forward(batch, self._states.layers, frozenset(self.taps))
        return Ran(output.logits, self._joined(output.taps), lasts=True)

    def _repeat(self, graph: _Graph, cols: Columns, trees: Trees | None = None) -> Ran:
        count = len(cols.tokens)
        assert self._scratch is not None
        cols.pad(graph.shape.tokens, graph.shape.rows - 1, self._scratch)
        graph.flat.copy_(staged(cols.flat(graph.shape), self.device), non_blocking=True)
        if trees is not None:
            self._states.kv.ops.plant(trees, graph.step)
        graph.replay()
        for layer, tape in graph.tapes:
            layer.tape = tape
        features = None if graph.features is None else graph.features[:count]
        tokens, values, sound = graph.best
        best = tokens[:count], values[:count], sound[:count]
        return Ran(graph.logits[:count], features, lasts=False, best=best)

    def _graph(self, bucket: Bucket) -> _Graph | None:
        """None where there was no memory to capture it."""
        if bucket not in self._graphs:
            with Scarce() as memory:
                self._graphs[bucket] = self._capture(bucket)
            if memory.ran_out:
                log.warning(
                    "no memory to capture steps of %d tokens; they run slower without",
                    bucket.tokens,
                )
                self._graphs[bucket] = None
        return self._graphs[bucket]

    def _capture(self, bucket: Bucket) -> _Graph:
        record, scratch, shape = self._record, self._scratch, bucket.shape
        assert record is not None
        assert scratch is not None
        nothing = Columns()
        nothing.pad(shape.tokens, bucket.rows, scratch)
        flat = torch.from_numpy(nothing.flat(shape)).to(self.device)
        step = view(flat, shape, tuple(nothing.kinds), tuple(nothing.cu_q), nothing.spans)
        taken, ops = frozenset(self.taps), self._states.kv.ops

        def work() -> list[Tensor]:
            batch = step
            if record.on_host:  # ops may look at the host's numbers, which are the capture's
                batch = replace(step, cu_q=tuple(step.starts.tolist()))
            output = self._model.forward(batch, self._states.layers, taken)
            best = ops.argmax(output.logits[:, : self.vocab_size])
            features = self._joined(output.taps)
            return [output.logits, *best, *([] if features is None else [features])]

        replay, results = record(work)
        return _Graph(
            shape=shape,
            flat=flat,
            step=step,
            replay=replay,
            logits=results[0],
            best=(results[1], results[2], results[3]),
            features=results[4] if self.taps else None,
            tapes=[] if record.on_host else [(s, s.tape) for s in self._recurrent],
        )

    def _joined(self, tapped: dict[int, Tensor]) -> Tensor | None:
        if not self.taps:
            return None
        return torch.cat([tapped[layer] for layer in self.taps], dim=1)
