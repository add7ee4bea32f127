"""Sums: a product's result, finished or still in partial sums, for kernels that add these up as they read."""

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Sums:
    """parts [slots, T, N] of unit column stride; `counts` int32 [N]: how many of them a column has."""

    parts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, x: "Tensor | Sums") -> "Sums":
        """A finished result [T, N] is its own only part."""
        if isinstance(x, Sums):
            return x
        if x.stride(-1) != 1:
            x = x.contiguous()
        return cls(x[None], x)  # with one part nobody reads the counts

    @property
    def slots(self) -> int:
        return self.parts.shape[0]

    @property
    def rows(self) -> int:
        return self.parts.shape[1]

    @property
    def stride(self) -> int:
        """From one row to the next."""
        return row_stride(self.parts[0])

    @property
    def apart(self) -> int:
        """From one part to the next."""
        return self.parts.stride(0)

    @property
    def whole(self) -> Tensor:
        """The finished result [T, N]."""
        assert self.slots == 1
        return self.parts[0]


def row_stride(x: Tensor) -> int:
    """Elements from row to row of [T, N]. Triton compiles for what divides it, so a row alone, whose stride
    may be anything, must have that of rows in company: else its sums could go in another order."""
    return x.stride(0) if len(x) > 1 else x.shape[1]
