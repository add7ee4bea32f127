"""Grown: trees that a device grows from its own draft, verified before the host has seen them.

The host sizes them beforehand and reads them while the target already works at them.
"""

import time
from collections.abc import Callable
from functools import cache

from pydflash.kernels.ops import Trees
from pydflash.kernels.upload import Fetch
from pydflash.spec.proposal import Proposal


class Grown:
    """One tree of up to `nodes` nodes for each row, in order.

    They set out for the host at once: what the device is given afterwards, it does while they are read.
    """

    def __init__(self, trees: Trees) -> None:
        self.trees = trees
        self.nodes = trees.tokens.shape[1]
        self.waited = 0.0  # seconds that `read` waited for the draft
        self.on_read: Callable[[list[Proposal]], None] | None = None  # told what was read
        self.send()

    def send(self) -> None:
        """Again, for who changed `trees`."""
        t = self.trees
        self._crossing = Fetch([t.tokens, t.parents, t.depth, t.counts])

    def read(self) -> list[Proposal]:
        """What was grown. Waits for the draft, not for what the device does after it. To be called once."""
        begun = time.perf_counter()
        parts = self._crossing.arrays()
        self.waited = time.perf_counter() - begun
        tokens, parents, depth, counts = (part.tolist() for part in parts)
        made = [
            Proposal(tuple(tokens[r][:n]), tuple(parents[r][:n]), tuple(depth[r][:n]))
            for r, n in enumerate(counts)
        ]
        if self.on_read is not None:
            self.on_read(made)
        return made


@cache
def stand_in(nodes: int) -> Proposal:
    """A proposal of so many nodes and of the most depth, to lay out a step whose trees are not known yet."""
    return Proposal.chain([0] * nodes)
