"""StepPlan and proposals (host) to StepBatch (device tensors). The only place that builds one."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import torch

from pydflash.engine.request import Phase
from pydflash.engine.scheduler import Row
from pydflash.kernels.ops import RowKind, Span, StepBatch
from pydflash.spec.proposal import Proposal
from pydflash.state.sequence import SequenceState


@dataclass(frozen=True, slots=True)
class RowWork:
    """A row with its state, and its proposal when it decodes."""

    row: Row
    state: SequenceState
    proposal: Proposal | None

    @property
    def tokens(self) -> int:
        """Tokens of the step that are this row's."""
        return self.row.count if self.proposal is None else len(self.proposal.tokens)


@dataclass(slots=True)
class _Columns:
    """The flat lists of a step as they grow."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    write_slots: list[int] = field(default_factory=list)
    ancestors: list[list[int]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)


def build(work: Many[RowWork], device: torch.device) -> StepBatch:
    """One step for the model. Rows come exact first; every state has its positions reserved and is told
    that the step begins."""
    cols = _Columns()
    cu_q = [0]
    kinds = []
    has_tree = any(w.proposal is not None and len(w.proposal.tokens) > 1 for w in work)
    for r, w in enumerate(work):
        _append(cols, r, w)
        kind = RowKind.PREFILL if w.row.phase is Phase.PREFILL else RowKind.EXACT
        kinds.append(kind)
        count = len(cols.tokens) - cu_q[-1]
        w.state.begin(cu_q[-1], count, in_place=kind is RowKind.PREFILL or count == 1)
        cu_q.append(len(cols.tokens))
    pages = max(len(w.state.pages) for w in work)

    def ints(values: list[int] | list[list[int]], dtype: type = np.int32) -> torch.Tensor:
        # NOTE: through numpy, which is three times as fast at lists; a step makes ten of these.
        return torch.from_numpy(np.array(values, dtype)).to(device)

    depth = max(len(a) for a in cols.ancestors)
    return StepBatch(
        tokens=ints(cols.tokens),
        positions=ints(cols.positions),
        row_of=ints(cols.row_of),
        kinds=tuple(kinds),
        cu_q=tuple(cu_q),
        base=ints([w.state.length for w in work]),
        page_table=ints([w.state.pages + [0] * (pages - len(w.state.pages)) for w in work]),
        write_slots=ints(cols.write_slots),
        slots=ints([w.state.slot or 0 for w in work]),
        ancestors=ints([a + [-1] * (depth - len(a)) for a in cols.ancestors]) if has_tree else None,
        parents=ints(cols.parents) if has_tree else None,
        logit_rows=ints(cols.logit_rows, np.int64),
        spans=_spans(kinds, cu_q),
        starts=ints(cu_q),
    )


def _append(cols: _Columns, r: int, w: RowWork) -> None:
    base, first = w.state.length, len(cols.tokens)
    if w.proposal is not None:
        nodes = w.proposal
        count = len(nodes.tokens)
        cols.tokens += nodes.tokens
        cols.positions += [base + d for d in nodes.depth]
        cols.parents += [first + p if p >= 0 else -1 for p in nodes.parents]
        cols.logit_rows += range(first, first + count)
        cols.ancestors += [[w.state.place(base + n) for n in nodes.path(i)] for i in range(count)]
    else:
        sequence = w.row.sequence
        count = w.row.count
        cols.tokens += sequence.tokens[base : base + count]
        cols.positions += range(base, base + count)
        cols.parents += [first + i - 1 if i else -1 for i in range(count)]
        if wants_logits(w.row):
            cols.logit_rows.append(first + count - 1)
        if w.row.phase is Phase.RECOMPUTE:
            places = [w.state.place(base + i) for i in range(count)]
            cols.ancestors += [places[: i + 1] for i in range(count)]
        else:
            cols.ancestors += [[]] * count
    cols.row_of += [r] * count
    cols.write_slots += [w.state.place(base + i) for i in range(count)]


def wants_logits(row: Row) -> bool:
    """A prefill chunk that ends a fresh prompt gives the first token; nothing else without a proposal."""
    sequence = row.sequence
    return (
        row.phase is Phase.PREFILL
        and sequence.stored + row.count == sequence.num_prompt
        and sequence.num_generated == 0
    )


def _spans(kinds: list[RowKind], cu_q: list[int]) -> tuple[Span, ...]:
    """All exact rows are one product; each prefill chunk is its own."""
    exact = sum(k is RowKind.EXACT for k in kinds)
    spans = [Span(0, cu_q[exact], RowKind.EXACT)] if exact else []
    spans += [Span(cu_q[r], cu_q[r + 1], RowKind.PREFILL) for r in range(exact, len(kinds))]
    return tuple(spans)
