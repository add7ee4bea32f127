"""Random weights and metadata of the Qwen3.5 family and of mixtures of experts, under their GGUF names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Matrix = Callable[..., np.ndarray]
Vector = Callable[[int, float], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Gated DeltaNet sizes: `k_heads` key heads and `v_heads` value heads of `state` features each."""

    interval: int = 2
    k_heads: int = 2
    v_heads: int = 4
    state: int = 16
    width: int = 4

    @property
    def inner(self) -> int:
        return self.v_heads * self.state

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.k_heads * self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """Sizes of a mixture; `shared` 0 leaves the shared expert out, `fused` merges gate and up."""

    experts: int = 6
    used: int = 2
    ffn: int = 32
    shared: int = 32
    fused: bool = False
    router: float = 2  # how far apart the experts' chances are


def delta_weights(
    at: str, hidden: int, d: DeltaShape, matrix: Matrix, vector: Vector
) -> dict[str, np.ndarray]:
    """The mixer of one Gated DeltaNet layer."""
    return {
        at + "attn_qkv.weight": matrix(d.channels, hidden),
        at + "attn_gate.weight": matrix(d.inner, hidden),
        at + "ssm_alpha.weight": matrix(d.v_heads, hidden),
        at + "ssm_beta.weight": matrix(d.v_heads, hidden),
        at + "ssm_conv1d.weight": matrix(d.channels, d.width),
        at + "ssm_a": -np.exp(vector(d.v_heads, 0) * 10).astype(np.float32),
        at + "ssm_dt.bias": vector(d.v_heads, 0.5),
        at + "ssm_norm.weight": vector(d.state, 1),
        at + "ssm_out.weight": matrix(hidden, d.inner),
    }


def delta_keys(d: DeltaShape, head_dim: int) -> dict[str, Any]:
    """Metadata below `{arch}.`; half of each attention head is rotated."""
    pairs = head_dim // 4
    third = pairs // 3
    return {
        "full_attention_interval": d.interval,
        "ssm.conv_kernel": d.width,
        "ssm.inner_size": d.inner,
        "ssm.state_size": d.state,
        "ssm.time_step_rank": d.v_heads,
        "ssm.group_count": d.k_heads,
        "rope.dimension_count": 2 * pairs,
        "rope.dimension_sections": [pairs - 2 * third, third, third, 0],
    }


def moe_weights(
    at: str, hidden: int, m: MoeShape, matrix: Matrix, vector: Vector
) -> dict[str, np.ndarray]:
    """Router, experts and shared expert of one layer. `matrix(rows, cols, count)` makes stacks."""
    gate, up = matrix(m.ffn, hidden, m.experts), matrix(m.ffn, hidden, m.experts)
    out = {
        at + "ffn_gate_inp.weight": matrix(m.experts, hidden) * np.float32(m.router),
        at + "ffn_down_exps.weight": matrix(hidden, m.ffn, m.experts),
    }
    if m.fused:
        out[at + "ffn_gate_up_exps.weight"] = np.concatenate([gate, up], 1)
    else:
        out |= {at + "ffn_gate_exps.weight": gate, at + "ffn_up_exps.weight": up}
    if m.shared:
        out |= {
            at + "ffn_gate_shexp.weight": matrix(m.shared, hidden),
            at + "ffn_up_shexp.weight": matrix(m.shared, hidden),
            at + "ffn_down_shexp.weight": matrix(hidden, m.shared),
            at + "ffn_gate_inp_shexp.weight": vector(hidden, 0),
        }
    return out


def moe_keys(m: MoeShape) -> dict[str, Any]:
    """Metadata below `{arch}.`."""
    keys = {
        "expert_count": m.experts,
        "expert_used_count": m.used,
        "expert_feed_forward_length": m.ffn,
    }
    return keys | ({"expert_shared_feed_forward_length": m.shared} if m.shared else {})
