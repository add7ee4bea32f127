"""What a layer needs to remember (StateSpec), told by the model and served by the state package.

Every kind can go back: extend, commit along a path, roll back, export and import. Features that would
break that are not added.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKVSpec:
    """Attention keys and values of one layer."""

    layer: int
    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentSpec:
    """The recurrent state of one Gated DeltaNet layer, f32: it cannot be cropped, only kept or repeated."""

    layer: int
    conv_channels: int
    conv_width: int
    k_heads: int
    heads: int  # value heads
    k_dim: int
    v_dim: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's state."""
        conv = (self.conv_width - 1) * self.conv_channels
        return 4 * (conv + self.heads * self.k_dim * self.v_dim)

    @property
    def tape_bytes(self) -> int:
        """Bytes that one exact row leaves on the tape until it is committed."""
        operands = self.k_heads * self.k_dim + self.heads * (self.v_dim + 1)
        return 4 * (self.conv_channels + operands)


StateSpec = PagedKVSpec | RecurrentSpec
"""The union of the kinds a layer may ask for; a layer has one."""


def paged_specs(specs: Sequence[StateSpec]) -> list[PagedKVSpec]:
    return [s for s in specs if isinstance(s, PagedKVSpec)]


def recurrent_specs(specs: Sequence[StateSpec]) -> list[RecurrentSpec]:
    return [s for s in specs if isinstance(s, RecurrentSpec)]
