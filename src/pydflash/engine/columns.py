"""Columns: a step in host integers, and the one flat buffer in which it reaches the device.

A dozen small copies to a GPU would cost more than a layer of the network, and a captured graph reads its
inputs from fixed places: so everything lies in one int32 buffer, in the order of `StepShape.sizes`.
"""

from array import array
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pydflash.kernels.ops import PAGE_SIZE, RowKind, Span, StepBatch

I32 = npt.NDArray[np.int32]
Ints: TypeAlias = "array[int]"  # 32 bits each, to be copied as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """How much of everything a step holds. Letters as in `kernels.ops`; no `depth`: no tree."""

    tokens: int  # T
    rows: int  # R
    pages: int  # P
    depth: int  # A
    logits: int  # M

    @property
    def sizes(self) -> list[int]:
        """int32s of: logit rows (int64, so they come first), tokens, positions, row_of, write_slots,
        parents, ancestors, base, slots, starts, page table."""
        T, R = self.tokens, self.rows
        tree = [T, T * self.depth] if self.depth else [0, 0]
        return [2 * self.logits, T, T, T, T, *tree, R, R, R + 1, R * self.pages]


@dataclass(slots=True, kw_only=True)
class Columns:
    """The lists of a step as they grow, row by row."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    write_slots: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    ancestors: list[Ints] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    base: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    cu_q: list[int] = field(default_factory=lambda: [0])
    tables: list[Ints] = field(default_factory=list)  # pages of each row
    kinds: list[RowKind] = field(default_factory=list)
    has_tree: bool = False

    @property
    def shape(self) -> StepShape:
        """As small as the step allows."""
        return StepShape(
            tokens=len(self.tokens),
            rows=len(self.kinds),
            pages=max(map(len, self.tables)),
            depth=max(map(len, self.ancestors)) if self.has_tree else 0,
            logits=len(self.logit_rows),
        )

    @property
    def spans(self) -> tuple[Span, ...]:
        """All exact rows are one product; each prefill chunk is its own."""
        kinds, cu = self.kinds, self.cu_q
        exact = sum(kind is RowKind.EXACT for kind in kinds)
        spans = [Span(0, cu[exact], RowKind.EXACT)] if exact else []
        spans += [Span(cu[r], cu[r + 1], RowKind.PREFILL) for r in range(exact, len(kinds))]
        return tuple(spans)

    @property
    def wants_all(self) -> bool:
        """Exact rows only, and logits of every token: what a captured forward computes."""
        return self.kinds[-1] is RowKind.EXACT and len(self.logit_rows) == len(self.tokens)

    def flat(self, shape: StepShape) -> I32:
        """The buffer of a step of that shape, which must have room for this one."""
        parts: list[Ints] = [
            array("q", self.logit_rows),
            array("i", self.tokens + self.positions + self.row_of + self.write_slots),
        ]
        if shape.depth:
            parts.append(array("i", self.parents))
            blank = array("i", [-1]) * shape.depth
            for path in self.ancestors:
                parts += (path, blank[len(path) :])
        parts.append(array("i", self.base + self.slots + self.cu_q))
        blank = array("i", [0]) * shape.pages
        for table in self.tables:
            parts += (table, blank[len(table) :])
        # Whole pieces of memory: three times as fast as one list of numbers.
        return np.frombuffer(bytearray().join(parts), np.int32)

    def pad(self, tokens: int, rows: int, scratch: "Scratch") -> None:
        """Grow to `tokens` tokens in `rows` rows and a last one, which holds the tokens added.

        Rows added before it are empty. What the added tokens store falls on scratch.
        """
        assert self.kinds[-1:] != [RowKind.PREFILL]
        have, place = len(self.tokens), scratch.page * PAGE_SIZE
        more = rows + 1 - len(self.kinds)
        self.kinds += [RowKind.EXACT] * more
        self.cu_q += [have] * (more - 1) + [tokens]
        self.base += [0] * more
        self.slots += [scratch.slot] * more
        self.tables += [array("i", [scratch.page])] * more
        added = tokens - have
        places = [place + i % PAGE_SIZE for i in range(added)]
        self.tokens += [0] * added
        self.positions += [0] * added
        self.row_of += [rows] * added
        self.write_slots += places
        self.parents += [-1] * added
        self.ancestors += [array("i", [p]) for p in places]
        self.logit_rows += range(have, tokens)
        self.has_tree = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Where padding may write: a KV page and a recurrent slot that nobody owns."""

    page: int
    slot: int


def view(
    flat: torch.Tensor,
    shape: StepShape,
    kinds: tuple[RowKind, ...],
    cu_q: tuple[int, ...],
    spans: tuple[Span, ...],
) -> StepBatch:
    """The step that a buffer of `Columns.flat`, int32 where the ops are, means."""
    wanted, tokens, positions, row_of, places, parents, ancestors, base, slots, starts, pages = (
        flat.split_with_sizes(shape.sizes)
    )
    return StepBatch(
        tokens=tokens,
        positions=positions,
        row_of=row_of,
        kinds=kinds,
        cu_q=cu_q,
        base=base,
        page_table=pages.view(shape.rows, shape.pages),
        write_slots=places,
        slots=slots,
        ancestors=ancestors.view(shape.tokens, shape.depth) if shape.depth else None,
        parents=parents if shape.depth else None,
        logit_rows=wanted.view(torch.int64),
        spans=spans,
        starts=starts,
    )
