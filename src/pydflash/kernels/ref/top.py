"""The best numbers of each row and its logsumexp. The specification."""

import torch

Tensor = torch.Tensor


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """f32 [M, V] -> values [M, K] descending, ids int64 [M, K] (of equals the lower first), totals [M]."""
    ordered = logits.sort(stable=True, dim=-1, descending=True)
    return ordered.values[:, :k], ordered.indices[:, :k], logits.logsumexp(-1)
