"""Chunks: how attention over a long context is cut on a GPU. Numbers, for kernels and the memory plan alike.

A chunk has its place among absolute positions, whatever the context's length: FINE positions each up to
EARLY, where a step is short and waits for one chunk, COARSE each from there on, where partial results would
be many.
"""

FINE, COARSE, EARLY = 64, 256, 1024
"""Positions that one program of an exact row attends to, before EARLY and from there on. Part of the
reduction order, like PAGE_SIZE."""


def chunks(positions: int) -> int:
    """How many chunks the first positions take; each leaves a partial result of its own."""
    early = min(positions, EARLY)
    return -(-early // FINE) - (early - positions) // COARSE
