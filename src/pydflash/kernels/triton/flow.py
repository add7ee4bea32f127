"""Norms made together with the sums before them.

A layer ends by adding a product's partial sums to the residual, and the next one begins with a norm of it:
two small launches that one can do. Which norm follows a weight is learned the first time; from then on,
where a step is of exact rows, it is made with the sum and lies ready when asked for. Its bits are the same.
Ops that overwrite the residual come through `add`, or take its norm first, or say so by `forget`.
"""

from dataclasses import dataclass

import torch

from pydflash.kernels.ops import Weight
from pydflash.kernels.triton import pointwise
from pydflash.kernels.triton.weights import packed_of

Tensor = torch.Tensor
_THEN = "norm after"


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor
    eps: float
    width: int

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Norm)
            and self.weight is other.weight
            and (self.eps, self.width) == (other.eps, other.width)
        )


@dataclass(frozen=True, slots=True)
class _Sum:
    """The latest sum of a device: where it is, what weight's, and its norm if that was made, too."""

    x: Tensor
    version: int  # of x: torch's own operations on it count
    of: Weight
    norm: _Norm | None = None
    normed: Tensor | None = None


_latest: dict[torch.device, _Sum] = {}


def add(parts: Tensor, w: Weight, residual: Tensor) -> None:
    """residual f32 [T, N] += the partial sums of `w`'s product, and its norm with them if one follows."""
    counts = packed_of(w).slot_counts
    norm = w.scratch.get(_THEN)
    # That a barrier orders what other threads stored in memory is NVIDIA's word, not AMD's.
    is_joint = len(residual) <= pointwise.MOST_JOINT and torch.version.hip is None
    if isinstance(norm, _Norm) and is_joint:
        normed = pointwise.finish_norm(
            parts, counts, residual, w.bias, norm.weight, norm.eps, norm.width
        )
        _latest[residual.device] = _Sum(residual, residual._version, w, norm, normed)
        return
    pointwise.finish(parts, counts, residual=residual, bias=w.bias, out=residual)
    _latest[residual.device] = _Sum(residual, residual._version, w)


def forget(device: torch.device) -> None:
    """The latest sum is to be changed by a kernel, which torch does not count."""
    _latest.pop(device, None)


def norm(x: Tensor, weight: Tensor, eps: float, width: int) -> Tensor:
    """As `pointwise.norm`; made already, if `x` is the latest sum."""
    wanted, latest = _Norm(weight, eps, width), _latest.pop(x.device, None)
    if latest is not None and latest.x is x and latest.version == x._version:
        if latest.normed is not None and latest.norm == wanted:
            return latest.normed
        latest.of.scratch[_THEN] = wanted
        pointwise.arrived(x.device)
    return pointwise.norm(x, weight, eps, width)
