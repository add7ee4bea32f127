"""Address tables: how one launch finds the tensors of many layers, wherever torch put them."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

Tensor = torch.Tensor


def addresses(rows: Sequence[Sequence[Tensor | None]], device: torch.device) -> Tensor:
    """int64 [layers, tensors] on the device: where each begins, 0 for None. They must outlive its use."""
    found = [[0 if t is None else t.data_ptr() for t in row] for row in rows]
    return torch.tensor(found, dtype=torch.int64, device=device)


@triton.jit
def tensor_at(entry_ptr, DTYPE: tl.constexpr):
    """A pointer to the tensor whose address lies there: torch allocated it, so it begins at 16 bytes."""
    return tl.multiple_of(tl.load(entry_ptr), 16).to(tl.pointer_type(DTYPE))
