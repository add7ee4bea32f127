"""The best numbers of each row and its logsumexp."""

import torch

from pydflash.kernels.triton.shortlist import listed


def top(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `OpTable.top`. Rows may lie at any distance."""
    values, ids, _, totals = listed(logits, k, torch.int64)
    return values, ids, totals
