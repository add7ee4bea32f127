"""RowSpan and Runs: runs of positions of several ring contexts, in host integers and as one StepBatch."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pydflash.kernels.ops import PAGE_SIZE, RowKind, Span, StepBatch
from pydflash.kernels.upload import upload
from pydflash.state.ring import RingContext

_NONE = torch.empty(0, dtype=torch.int64)  # no logits come from these steps


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Positions start..start + count - 1 of a context, about to be written; tokens only of a block."""

    context: RingContext
    start: int
    count: int
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Exact rows over ring contexts; `values` int32 is everything that goes to the device, in one buffer."""

    values: npt.NDArray[np.int32]
    cu_q: tuple[int, ...]
    pages: int
    tokens: int  # 0 where the step only stores

    def view(self, flat: torch.Tensor) -> StepBatch:
        """The step that these values mean, where `flat` holds them."""
        total, count, pages = self.cu_q[-1], len(self.cu_q) - 1, self.pages
        sizes = [total, total, total, count, count, count, count + 1, count * pages, self.tokens]
        cuts = flat.split_with_sizes(sizes)
        return StepBatch(
            tokens=cuts[8]
            if self.tokens
            else cuts[0],  # of stores nobody looks, but they are counted
            positions=cuts[0],
            write_slots=cuts[1],
            row_of=cuts[2],
            base=cuts[3],
            first=cuts[4],
            slots=cuts[5],
            starts=cuts[6],
            page_table=cuts[7].view(count, pages),
            kinds=(RowKind.EXACT,) * count,
            cu_q=self.cu_q,
            ancestors=None,
            parents=None,
            logit_rows=_NONE,
            spans=(Span(0, total, RowKind.EXACT),),
        )


def runs(rows: Sequence[RowSpan], *, widths: Sequence[int] = (), pad: int = 0) -> Runs:
    """Those rows; each context is told what is about to be overwritten.

    `widths`: of page tables, of which the narrowest that fits is taken (none: no wider than needed). `pad`:
    tokens to grow to, of a step that only stores: those added fall on scratch.
    """
    cu_q = [0]
    positions: list[int] = []
    places: list[int] = []
    row_of: list[int] = []
    for r, row in enumerate(rows):
        end = row.start + row.count
        row.context.writes(end)
        positions += range(row.start, end)
        places += row.context.places(row.start, end)
        row_of += [r] * row.count
        cu_q.append(cu_q[-1] + row.count)
    if pad:
        scratch, more = rows[0].context.store.kv.scratch, pad - cu_q[-1]
        assert scratch is not None
        positions += [0] * more
        places += [scratch * PAGE_SIZE + i % PAGE_SIZE for i in range(more)]
        # Storing looks at tokens, not at rows: one row, so that one graph serves any number of them.
        rows, row_of, cu_q = rows[:1], [0] * pad, [0, pad]
    tables = [row.context.table(row.start + row.count) for row in rows]
    pages = max(map(len, tables))
    pages = next((n for n in widths if n >= pages), pages)
    tokens = [t for row in rows for t in row.tokens]
    flat = positions + places + row_of
    for row in rows:
        flat.append(row.start)
    for row in rows:
        flat.append(min(row.context.first, row.start))
    flat += [0] * len(rows)
    flat += cu_q
    for table in tables:
        flat += table + [0] * (pages - len(table))
    flat += tokens
    values = np.frombuffer(array("i", flat), np.int32)  # three times as fast as from a list
    return Runs(values=values, cu_q=tuple(cu_q), pages=pages, tokens=len(tokens))


def step(rows: Sequence[RowSpan], device: torch.device) -> StepBatch:
    """Those rows on the device. One copy: a dozen small ones would cost more than a layer of the network."""
    made = runs(rows)
    return made.view(upload(made.values, device))
