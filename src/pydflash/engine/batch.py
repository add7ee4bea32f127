"""StepPlan and proposals (host) to StepBatch (device tensors). The only place that builds one."""

from array import array
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch

from pydflash.engine.columns import Columns, Ints, view
from pydflash.engine.request import Phase
from pydflash.engine.scheduler import Row
from pydflash.kernels.ops import RowKind, StepBatch
from pydflash.kernels.upload import upload
from pydflash.spec.proposal import Proposal
from pydflash.state.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class RowWork:
    """A row with its state, and its proposal when it decodes. `nodes`: that the step holds for the proposal,
    where that may be more than it has."""

    row: Row
    state: SequenceState
    proposal: Proposal | None
    nodes: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the step that are this row's."""
        if self.proposal is None:
            return self.row.count
        return self.nodes or len(self.proposal.tokens)


def build(work: Many[RowWork], device: torch.device) -> StepBatch:
    """One step for the model."""
    return place(gather(work), device)


def place(cols: Columns, device: torch.device) -> StepBatch:
    """A step in host integers, put on the device in one copy."""
    shape = cols.shape
    flat = upload(cols.flat(shape), device)
    return view(flat, shape, tuple(cols.kinds), tuple(cols.cu_q), cols.spans)


def gather(work: Many[RowWork]) -> Columns:
    """A step in host integers. Rows come exact first; every state has its positions reserved and is told
    that the step begins."""
    cols = Columns()
    cols.has_tree = any(w.proposal is not None and len(w.proposal.tokens) > 1 for w in work)
    for r, w in enumerate(work):
        first = len(cols.tokens)
        _append(cols, r, w)
        kind = RowKind.PREFILL if w.row.phase is Phase.PREFILL else RowKind.EXACT
        count = len(cols.tokens) - first
        cols.kinds.append(kind)
        cols.cu_q.append(first + count)
        cols.base.append(w.state.length)
        cols.slots.append(w.state.slot or 0)
        cols.tables.append(array("i", w.state.pages))
        w.state.begin(first, count, in_place=kind is RowKind.PREFILL or count == 1)
    return cols


def _append(cols: Columns, r: int, w: RowWork) -> None:
    base, first = w.state.length, len(cols.tokens)
    places = w.state.places(base, base + w.tokens)
    if w.proposal is not None:
        nodes = w.proposal
        count = len(nodes.tokens)
        cols.tokens += nodes.tokens
        cols.positions += [base + d for d in nodes.depth]
        cols.parents += [first + p if p >= 0 else -1 for p in nodes.parents]
        cols.logit_rows += range(first, first + count)
        cols.ancestors += _paths(nodes.parents, places)
    else:
        sequence = w.row.sequence
        count = w.row.count
        cols.tokens += sequence.tokens[base : base + count]
        cols.positions += range(base, base + count)
        cols.parents += [first + i - 1 if i else -1 for i in range(count)]
        if wants_logits(w.row):
            cols.logit_rows.append(first + count - 1)
        if w.row.phase is Phase.RECOMPUTE:
            cols.ancestors += _paths(range(-1, count - 1), places)
        else:
            cols.ancestors += [array("i")] * count
    cols.row_of += [r] * count
    cols.write_slots += places


def _paths(parents: Many[int], places: list[int]) -> list[Ints]:
    """Of every node, the places of its ancestors and itself from the root on."""
    paths: list[Ints] = []
    for parent, place in zip(parents, places, strict=True):
        path = paths[parent][:] if parent >= 0 else array("i")
        path.append(place)
        paths.append(path)
    return paths


def wants_logits(row: Row) -> bool:
    """A prefill chunk that ends a fresh prompt gives the first token; nothing else without a proposal."""
    sequence = row.sequence
    return (
        row.phase is Phase.PREFILL
        and sequence.stored + row.count == sequence.num_prompt
        and sequence.num_generated == 0
    )
