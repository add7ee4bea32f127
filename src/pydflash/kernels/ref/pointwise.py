"""Norms, activations and rotary embedding, row by row. The specification; runs on any device.

Every function maps each row on its own, so a row's result cannot depend on its neighbours.
"""

import torch

from pydflash.kernels.ops import Rope

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension. x f32 [..., E], weight f32 [E]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def activate(gate: Tensor, up: Tensor, act: str) -> Tensor:
    """act(gate) * up, elementwise; act "silu" (SwiGLU) or "gelu" (GeGLU, tanh form)."""
    if act == "silu":
        return torch.nn.functional.silu(gate) * up
    if act == "gelu":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    raise ValueError(f"unknown activation {act!r}")


def apply_rope(x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """Rotate the first `rope.dims` of each head. x f32 [T, heads, D], positions int [T]."""
    at = positions.long()
    cos = rope.cos[at].unsqueeze(1)  # [T, 1, dims / 2]
    sin = rope.sin[at].unsqueeze(1)
    turned, rest = x[..., : rope.dims], x[..., rope.dims :]
    if rope.interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((out, rest), -1) if rest.shape[-1] else out
