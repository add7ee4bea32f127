"""The best token of each row, and whether the row is sound. The specification."""

import torch

Tensor = torch.Tensor


def argmax(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f32 [M, V] -> tokens int32 [M] (of equals the lowest), values f32 [M], sound bool [M].

    A row is sound without NaN and plus infinity; of others only that is said.
    """
    sound = (logits < torch.inf).all(-1)
    values = logits.amax(-1)
    tokens = (logits == values[:, None]).int().argmax(-1)  # the first of the largest
    return tokens.int(), values, sound
