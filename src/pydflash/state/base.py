"""What a layer needs to remember (StateSpec), told by the model and served by the state package.

Every kind can go back: extend, commit along a path, roll back, export and import. Features that would
break that are not added.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKVSpec:
    """Attention keys and values of one layer."""

    layer: int
    kv_heads: int
    head_dim: int
    window: int | None = None


StateSpec = PagedKVSpec
"""The union of the kinds a layer may ask for. Recurrent and shared kinds join it with their architectures."""
