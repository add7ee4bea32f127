"""Sample and match: walk each tree by the target's own draws.

A node's draw is the token plain decoding would have drawn there; while a child carries it, the walk goes
on. Whatever the tree holds, the tokens are those of plain decoding (design, rule 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from pydflash.errors import EngineError
from pydflash.sampling.ask import Ask, Stretch
from pydflash.sampling.device import Best
from pydflash.sampling.draw import Draw
from pydflash.sampling.sampler import Sampler
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
    *,
    best: Best | None = None,
) -> list[Walk]:
    """Walk every proposal. logits f32 [M, V]; row r's nodes start at `starts[r]`.

    `ask(row, drawn)` states how to draw after the tokens drawn so far this round, or raises the EngineError
    that ends the row (its grammar cannot go on). `is_last(row, drawn)` says that the latest drawn token ends
    the row, where plain decoding would have stopped. `best`: see `Sampler.rows`.
    """
    walks = [Walk() for _ in proposals]
    asks = [_asked(ask, r, [], walk) for r, walk in enumerate(walks)]
    stretches = [
        Stretch(ask=asked, first=first, depth=proposal.depth)
        for asked, first, proposal in zip(asks, starts, proposals, strict=True)
        if asked is not None
    ]
    children = [proposal.children() for proposal in proposals]
    rows = sampler.rows(logits, stretches, best)  # the first draw waits for the device
    for r, walk in enumerate(walks):
        drawn: list[int] = []
        asked = asks[r]
        while asked is not None:
            draw = rows.draw(starts[r] + walk.path[-1], asked)
            if isinstance(draw, EngineError):
                walk.error = draw
                break
            walk.draws.append(draw)
            drawn.append(draw.token)
            child = children[r].get((walk.path[-1], draw.token))
            if child is None or is_last(r, drawn):
                break
            walk.path.append(child)
            asked = _asked(ask, r, drawn, walk)
    return walks


def _asked(
    ask: Callable[[int, list[int]], Ask], row: int, drawn: list[int], walk: Walk
) -> Ask | None:
    """How to draw next, or None when that cannot be said, which ends the walk."""
    try:
        return ask(row, drawn)
    except EngineError as error:
        walk.error = error
        return None
