"""The loss of drafted slots, weighted by how much each slot's token counts for the length accepted.

`dpace` (arXiv 2605.18810): a slot counts as much as the slots behind it can still be reached, judged by the
drafter's own probabilities. `decay`: exp(-(slot - 1) / gamma), as in the DFlash paper.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from pydflash.train.network import DraftNet

Tensor = torch.Tensor
_ROWS = 1 << 16  # rows of logits at a time; more are recomputed in the backward pass
_ALPHA = 0.5


@dataclass(frozen=True, slots=True)
class Labels:
    """What slots should have said. All [R, N, S]; `valid`: inside the document; `known`: draftable, too."""

    token: Tensor
    previous: Tensor
    valid: Tensor
    known: Tensor


def labels_of(
    net: DraftNet, tokens: Tensor, lengths: Tensor, anchors: Tensor, slots: int
) -> Labels:
    """tokens int64 [R, T], lengths [R], anchors [R, N] (-1: none) -> labels of the `slots` behind each."""
    slot = torch.arange(1, slots + 1, device=tokens.device)
    at = anchors.clamp_min(0)[..., None] + slot
    valid = (at < lengths[:, None, None]) & (anchors >= 0)[..., None]
    inside = at.clamp_max(tokens.shape[1] - 1)

    def gather(index: Tensor) -> Tensor:
        return tokens.gather(1, index.flatten(1)).view(index.shape)

    token = gather(inside)
    known = valid & (net.place[token] < len(net.ids))
    return Labels(token, gather((at - 1).clamp_max(tokens.shape[1] - 1)), valid, known)


def cross_entropies(net: DraftNet, hidden: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """(of the final scores, of the unary ones) for each slot, f32 [R, N, S]; 0 where not known."""
    rows = labels.known.flatten().nonzero()[:, 0]
    states = hidden.flatten(0, -2)[rows]
    token = net.place[labels.token.flatten()[rows]]
    previous = labels.previous.flatten()[rows]
    if len(rows) <= _ROWS:
        final, unary = _piece(net, states, token, previous)
    else:
        parts = zip(*(_pieces(x) for x in (states, token, previous)), strict=True)
        pieces = [checkpoint(_piece, net, *part, use_reentrant=False) for part in parts]
        final, unary = (torch.cat(piece) for piece in zip(*pieces, strict=True))
    blank = hidden.new_zeros(labels.known.numel())
    shape = labels.known.shape
    return blank.index_put((rows,), final).view(shape), blank.index_put((rows,), unary).view(shape)


def _piece(net: DraftNet, hidden: Tensor, token: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    logits = net.unary(hidden)
    unary = F.cross_entropy(logits, token, reduction="none")
    if net.config.selector is None:
        return unary, unary
    logits = logits + net.pairwise(hidden, previous)
    return F.cross_entropy(logits, token, reduction="none"), unary


def _pieces(x: Tensor) -> list[Tensor]:
    """x in runs of _ROWS rows."""
    return [x[start : start + _ROWS] for start in range(0, len(x), _ROWS)]


def slot_weights(kind: str, gamma: float, entropy: Tensor, labels: Labels) -> Tensor:
    """[R, N, S], without gradient; 0 where not known."""
    if kind == "decay":
        slot = torch.arange(entropy.shape[-1], device=entropy.device)
        return torch.exp(-slot / gamma) * labels.known
    right = torch.exp(-entropy.detach()) * labels.known
    reach = ((1 - _ALPHA) * right + _ALPHA).cumprod(-1) * labels.valid
    return reach.flip(-1).cumsum(-1).flip(-1) * labels.known


def total(
    final: Tensor, unary: Tensor, weights: Tensor, share: float, has_selector: bool
) -> Tensor:
    """The weighted mean; the unary loss joins with `share` where a selector makes the final scores."""
    mixed = final + share * unary if has_selector else final
    return (mixed * weights).sum() / weights.sum().clamp_min(1e-6)
