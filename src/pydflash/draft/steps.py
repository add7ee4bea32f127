"""RowSpan and step: runs of positions of several ring contexts as one StepBatch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pydflash.kernels.ops import RowKind, Span, StepBatch
from pydflash.state.ring import RingContext

_NONE = torch.empty(0, dtype=torch.int64)  # no logits come from these steps


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Positions start..start + count - 1 of a context, about to be written; tokens only of a block."""

    context: RingContext
    start: int
    count: int
    tokens: tuple[int, ...] = ()


def step(rows: Sequence[RowSpan], device: torch.device) -> StepBatch:
    """Exact rows over ring contexts. Tells each context what is about to be overwritten."""
    cu_q = [0]
    positions: list[int] = []
    places: list[int] = []
    row_of: list[int] = []
    for r, row in enumerate(rows):
        end = row.start + row.count
        row.context.writes(end)
        positions += range(row.start, end)
        places += [row.context.place(p) for p in range(row.start, end)]
        row_of += [r] * row.count
        cu_q.append(cu_q[-1] + row.count)
    tables = [row.context.table(row.start + row.count) for row in rows]
    pages = max(map(len, tables))
    total, count = cu_q[-1], len(rows)
    tokens = [t for row in rows for t in row.tokens]
    flat = positions + places + row_of
    for row in rows:
        flat.append(row.start)
    for row in rows:
        flat.append(min(row.context.first, row.start))
    flat += [0] * count
    flat += cu_q
    for table in tables:
        flat += table + [0] * (pages - len(table))
    flat += tokens
    # One tensor in one go: a dozen small ones would cost more than a layer of the network.
    ints = torch.tensor(flat, dtype=torch.int32, device=device)
    sizes = [total, total, total, count, count, count, len(cu_q), count * pages, len(tokens)]
    cuts = ints.split_with_sizes(sizes)
    return StepBatch(
        tokens=cuts[8] if tokens else cuts[0],  # of stores nobody looks, but they are counted
        positions=cuts[0],
        write_slots=cuts[1],
        row_of=cuts[2],
        base=cuts[3],
        first=cuts[4],
        slots=cuts[5],
        starts=cuts[6],
        page_table=cuts[7].view(count, pages),
        kinds=(RowKind.EXACT,) * count,
        cu_q=tuple(cu_q),
        ancestors=None,
        parents=None,
        logit_rows=_NONE,
        spans=(Span(0, total, RowKind.EXACT),),
    )
