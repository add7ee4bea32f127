"""Sample and match: walk each tree by the target's own draws.

A node's draw is the token plain decoding would have drawn there; while a child carries it, the walk goes
on. Whatever the tree holds, the tokens are those of plain decoding (design, rule 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pydflash.errors import EngineError
from pydflash.sampling.draw import Draw
from pydflash.sampling.sampler import Ask, Sampler
from pydflash.spec.proposal import Proposal


@dataclass(slots=True)
class Walk:
    """One row's outcome: accepted nodes from the root on, and the draw made at each.

    `error` ends the row: the draw at the last node of `path` failed.
    """

    path: list[int] = field(default_factory=lambda: [0])
    draws: list[Draw] = field(default_factory=list)
    error: EngineError | None = None


def verify(
    sampler: Sampler,
    logits: torch.Tensor,
    proposals: Sequence[Proposal],
    starts: Sequence[int],
    ask: Callable[[int, list[int]], Ask],
    is_last: Callable[[int, list[int]], bool],
) -> list[Walk]:
    """Walk every proposal. logits f32 [M, V]; row r's nodes start at `starts[r]`.

    `ask(row, drawn)` states how to draw after the tokens drawn so far this round, or raises the EngineError
    that ends the row (its grammar cannot go on). `is_last(row, drawn)` says that the latest drawn token ends
    the row, where plain decoding would have stopped.
    """
    rows = sampler.rows(logits)
    walks = []
    for r, proposal in enumerate(proposals):
        walk = Walk()
        walks.append(walk)
        drawn: list[int] = []
        while True:
            try:
                asked = ask(r, drawn)
            except EngineError as error:
                walk.error = error
                break
            draw = sampler.draw(rows[starts[r] + walk.path[-1]], asked)
            if isinstance(draw, EngineError):
                walk.error = draw
                break
            walk.draws.append(draw)
            drawn.append(draw.token)
            child = proposal.child(walk.path[-1], draw.token)
            if child is None or is_last(r, drawn):
                break
            walk.path.append(child)
    return walks
