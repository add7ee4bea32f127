"""Head: what turns a block's hidden states and logits into scores, and the plain one.

A conditional head looks at more candidates than it is asked for, scores them along the path that it finds
most likely, and keeps the best of each slot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from pydflash.draft.base import F32, I32, DraftScores
from pydflash.kernels.ops import Guesses

Tensor = torch.Tensor
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The best tokens of one sequence's slots by the network's own logits.

    ids int64 [S, K] draft ids (rows of the draft vocabulary), tokens int32 [S, K] target ids, logits f32
    [S, K] descending, total f32 [S] the logsumexp over the draft vocabulary. hidden f32 [S, E] before the
    last norm.
    """

    anchor: int
    hidden: Tensor
    ids: I64
    tokens: I32
    logits: F32
    total: F32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """What `Candidates` holds, of R sequences and on the device: anchors int32 [R], ids int64 and tokens
    int32 [R * S, K], logits f32 [R * S, K], total f32 [R * S], hidden f32 [R * S, E]."""

    anchors: Tensor
    hidden: Tensor
    ids: Tensor
    tokens: Tensor
    logits: Tensor
    total: Tensor


class Head(Protocol):
    """Scores candidates."""

    name: str
    width: int
    """Candidates wanted for each slot, or 0 for as many as are asked for."""

    def scores(self, found: Candidates, top_k: int) -> DraftScores:
        """One sequence's."""

    @property
    def guesses(self) -> Callable[[Found, int], Guesses] | None:
        """Such scores of what was found, `top_k` of a slot, without the host; None where it must help."""


class PlainHead:
    """The network's own probabilities, slot by slot."""

    name = "dflash"
    width = 0

    def scores(self, found: Candidates, top_k: int) -> DraftScores:
        return DraftScores(tokens=found.tokens, logp=found.logits - found.total[:, None])

    def guesses(self, found: Found, top_k: int) -> Guesses:
        shape = len(found.anchors), -1, found.tokens.shape[1]
        logp = found.logits - found.total[:, None]
        return Guesses(roots=found.anchors, tokens=found.tokens.view(shape), logp=logp.view(shape))


def normalised(scores: F32, found: Candidates) -> F32:
    """Log-probabilities from corrected logits f32 [S, A, K] (a head's bias added to `found.logits`).

    The bias is known for the candidates only; the rest of the vocabulary counts with its uncorrected logits.
    """
    share = np.exp(found.logits - found.total[:, None]).sum(-1)
    rest = found.total + np.log(np.maximum(1 - share, 1e-9), dtype=np.float32)
    most = scores.max(-1)
    inside = most + np.log(np.exp(scores - most[..., None]).sum(-1))
    result: F32 = scores - np.logaddexp(inside, rest[:, None])[..., None]
    return result


def likely_path(pair: F32) -> list[int]:
    """The candidate of each slot on the greedy path through pair f32 [S, K, K]."""
    path: list[int] = []
    for slot in pair:
        path.append(int(slot[path[-1] if path else 0].argmax()))
    return path


def settle(tokens: I32, pair: F32, top_k: int) -> DraftScores:
    """Order each slot's candidates by what the greedy path gives them, and keep the best `top_k`.

    tokens int32 [S, K]; pair f32 [S, K, K] log-probabilities by (candidate of the slot before, candidate).
    """
    before = [0, *likely_path(pair)[:-1]]
    logp = pair[np.arange(len(pair)), before]
    order = np.argsort(-logp, axis=1, kind="stable")[:, :top_k]
    rows = np.concatenate((order[:1], order[:-1]))
    return DraftScores(
        tokens=np.take_along_axis(tokens, order, 1),
        logp=np.take_along_axis(logp, order, 1),
        pair=np.ascontiguousarray(
            pair[np.arange(len(pair))[:, None, None], rows[:, :, None], order[:, None, :]]
        ),
    )


def settled(tokens: Tensor, pair: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """`settle` for R sequences on a device: tokens int32 [R, S, K], pair f32 [R, S, K, K]; then tokens, logp
    and pair of the `top_k`.

    The greedy path is found in a few launches: the best successor of every candidate, as a function from
    slot to slot, is composed with the one before, then with the two before those, and so on.
    """
    R, S, K = tokens.shape
    reached = pair.argmax(-1)  # of each slot, by the candidate that was taken `span` slots before
    span = 1
    while span < S:
        further = reached[:, span:].gather(-1, reached[:, :-span])
        reached = torch.cat([reached[:, :span], further], 1)
        span *= 2
    start = reached.new_zeros(R, 1)
    before = torch.cat([start, reached[:, :-1, 0]], 1)
    logp, order = (
        pair.gather(2, before.view(R, S, 1, 1).expand(R, S, 1, K))
        .squeeze(2)
        .sort(dim=-1, descending=True, stable=True)
    )
    logp, order = logp[..., :top_k].contiguous(), order[..., :top_k]
    kept = order.shape[-1]
    rows = torch.cat([order[:, :1], order[:, :-1]], 1)
    cut = pair.gather(2, rows.unsqueeze(-1).expand(R, S, kept, K))
    cut = cut.gather(3, order.unsqueeze(2).expand(R, S, kept, kept))
    return tokens.gather(-1, order), logp, cut
