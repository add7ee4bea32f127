"""Tapes at fixed addresses: a graph that was captured writes where the tape was then.

A layer's buffer grows to the most exact tokens a step ever had and stays with its Recurrent; a step's tape
is the first rows of it. A graph keeps the tapes it was captured with and puts them back before a replay's
commit: they stay valid, whatever grew since.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pydflash.kernels.ops import DeltaArgs, Recurrent, Tape
from pydflash.kernels.triton.addresses import addresses

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """int64 [layers, 6]: the addresses of each layer's `kept` tensors, none of which may be freed before."""

    kept: tuple[Tensor, ...]
    table: Tensor


@dataclass(slots=True, eq=False)
class TapeBuffer:
    """`whole` has room for `rows` tokens; `parts` are the views that steps were given, by tokens; `tables`
    serve commits of layers that begin with this one, by addresses. They stay, with the tapes of before, for
    graphs read them."""

    whole: Tape
    rows: int
    parts: dict[int, Tape] = field(default_factory=dict)
    tables: dict[tuple[int, ...], _Table] = field(default_factory=dict)

    def first(self, tokens: int) -> Tape:
        """The tape of a step of so many exact tokens: the same object each time."""
        if tokens not in self.parts:
            w = self.whole
            self.parts[tokens] = Tape(
                k=w.k[:tokens], delta=w.delta[:tokens], decay=w.decay[:tokens], rows=w.rows[:tokens]
            )
        return self.parts[tokens]


def reserve(recurrent: Recurrent, args: DeltaArgs, tokens: int) -> TapeBuffer:
    """The layer's buffer, with room for `tokens` exact tokens. What an older one held is not in it."""
    held = recurrent.buffers
    if isinstance(held, TapeBuffer) and held.rows >= tokens:
        return held
    rows, tables = tokens, {}
    if isinstance(held, TapeBuffer):
        # Doubled, so that all that was outgrown is never more than what there is.
        rows, tables = max(tokens, 2 * held.rows), held.tables
    like = recurrent.state
    whole = Tape(
        k=like.new_empty(rows, args.k_heads, args.k_dim),
        delta=like.new_empty(rows, args.v_heads, args.v_dim),
        decay=like.new_empty(rows, args.v_heads),
        rows=like.new_empty(rows, args.channels),
    )
    recurrent.buffers = buffer = TapeBuffer(whole, rows, tables=tables)
    return buffer


def tape_of(recurrent: Recurrent) -> Tape:
    """The tape of the last step."""
    assert recurrent.tape is not None, "a commit without the step it belongs to"
    return recurrent.tape


def operand_table(recurrents: Sequence[Recurrent]) -> Tensor:
    """int64 [layers, 6] on the device: where conv, state and the tape's k, delta, decay and rows of each
    layer begin. Kept with the first layer."""
    key = tuple([p for r in recurrents for p in (r.state.data_ptr(), tape_of(r).k.data_ptr())])
    held = recurrents[0].buffers
    known = held.tables.get(key) if isinstance(held, TapeBuffer) else None
    if known is None:
        kept = [
            (r.conv, r.state, t.k, t.delta, t.decay, t.rows)
            for r in recurrents
            for t in (tape_of(r),)
        ]
        known = _Table(
            kept=tuple(tensor for layer in kept for tensor in layer),
            table=addresses(kept, recurrents[0].state.device),
        )
        if isinstance(held, TapeBuffer):
            held.tables[key] = known
    return known.table
