"""RecurrentStore: the recurrent states of every layer, a slot for each sequence or snapshot.

A slot is overwritten by each token, so going back means having kept a copy, and a step over a tree leaves
the slot as it was and its operands on a tape, which the commit repeats (see `kernels.ops.Tape`).
Invariant: a slot is free or held once, and zero before its first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

import torch

from pydflash.errors import CapacityError
from pydflash.kernels.ops import OpTable, Paths, Recurrent
from pydflash.state.base import RecurrentSpec

Tensor = torch.Tensor
SlotId = NewType("SlotId", int)


class OutOfSlots(CapacityError):
    """Every slot is held. The engine keeps enough of them; users only meet it through a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """Accepted tokens of one sequence: indices in the step whose tape is current."""

    slot: SlotId
    nodes: Sequence[int]


class RecurrentStore:
    """Slots for every layer, allocated once."""

    def __init__(
        self,
        specs: Sequence[RecurrentSpec],
        num_slots: int,
        ops: OpTable,
        *,
        scratch: bool = False,
    ) -> None:
        """`scratch`: have one slot more, which nobody owns and padding may advance."""
        self.num_slots = num_slots
        self.scratch = num_slots if scratch else None
        self.ops = ops
        whole = num_slots + scratch
        self.nbytes = whole * sum(spec.slot_bytes for spec in specs)
        self.layers = [_layer(spec, whole, ops.device) for spec in specs]
        self.layout = "recurrent:" + ",".join(
            f"{s.conv_width}x{s.conv_channels}+{s.heads}x{s.k_dim}x{s.v_dim}" for s in specs
        )
        self.step = 0  # counts steps: a tape belongs to the latest
        self._free = [SlotId(i) for i in reversed(range(num_slots))]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> SlotId:
        """A slot in the state before any token. Raises OutOfSlots."""
        slot = self._take()
        self.clear(slot)
        return slot

    def copy_of(self, slot: SlotId) -> SlotId:
        """A new slot with the same contents. Raises OutOfSlots."""
        mine = self._take()
        self.copy(slot, mine)
        return mine

    def free(self, slot: SlotId) -> None:
        assert slot not in self._free, f"slot {slot} freed twice"
        self._free.append(slot)

    def clear(self, slot: SlotId) -> None:
        for layer in self.layers:
            layer.conv[slot].zero_()
            layer.state[slot].zero_()

    def copy(self, src: SlotId, dst: SlotId) -> None:
        for layer in self.layers:
            layer.conv[dst] = layer.conv[src]
            layer.state[dst] = layer.state[src]

    def commit(self, paths: Paths) -> None:
        """Advance slots along accepted tokens of the latest step."""
        if self.ops.delta_commit_all is not None:
            self.ops.delta_commit_all(self.layers, paths)
            return
        for layer in self.layers:
            self.ops.delta_commit(layer, paths)

    @property
    def tapes_at(self) -> tuple[int, ...]:
        """Where the latest step's tapes lie: a graph of a commit is for those alone."""
        return tuple([layer.tape.k.data_ptr() for layer in self.layers if layer.tape is not None])

    def drop_tapes(self) -> None:
        """Let the latest step's operands go: everything it proposed is committed or refused."""
        self.step += 1
        for layer in self.layers:
            layer.tape = None

    def export(self, slot: SlotId) -> list[Tensor]:
        """Copies on the host: conv and state of every layer in order."""
        return [t[slot].cpu().clone() for layer in self.layers for t in (layer.conv, layer.state)]

    def import_(self, slot: SlotId, blob: Sequence[Tensor]) -> None:
        """Write what `export` gave into a slot."""
        mine = [t for layer in self.layers for t in (layer.conv, layer.state)]
        for tensor, theirs in zip(mine, blob, strict=True):
            tensor[slot] = theirs.to(tensor.device)

    def check(self, held: Sequence[SlotId]) -> None:
        """Assert that `held`, the slots of all holders, and the free ones are all there are."""
        assert sorted([*held, *self._free]) == list(range(self.num_slots))

    def _take(self) -> SlotId:
        if not self._free:
            raise OutOfSlots(
                f"all {self.num_slots} recurrent state slots are held; run fewer sequences at once "
                "or raise --max-concurrency"
            )
        return self._free.pop()


def _layer(spec: RecurrentSpec, slots: int, device: torch.device) -> Recurrent:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(slots, *shape, dtype=torch.float32, device=device)

    return Recurrent(
        conv=zeros(spec.conv_width - 1, spec.conv_channels),
        state=zeros(spec.heads, spec.k_dim, spec.v_dim),
    )
