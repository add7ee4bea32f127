"""warm_start: a drafter that begins as the target's last layers, reading the state they read.

The target's norm of a layer's input is folded into its projections, so that one normed context serves all
the drafter's layers.
"""

import torch

from pydflash.train.dense import DenseTarget
from pydflash.train.network import DraftNet, load_weights

Tensor = torch.Tensor


@torch.inference_mode()
def warm_start(net: DraftNet, target: DenseTarget, sample: Tensor) -> bool:
    """Copy what fits; False when nothing does. `sample` int64 [R, T]: tokens to measure keys on."""
    c, t = net.config, target.config
    same = (c.hidden, c.ffn, c.heads, c.kv_heads, c.head_dim) == (
        t.hidden, t.ffn, t.heads, t.kv_heads, t.head_dim,
    )  # fmt: skip
    if not same or c.layers >= t.layers or t.rope.dims != t.head_dim:
        return False
    inputs: dict[int, Tensor] = {}
    target.run(sample, lambda i, x: inputs.__setitem__(i + 1, x))
    q_rows, kv_rows = c.heads * c.head_dim, c.kv_heads * c.head_dim
    rope = target.rope
    cos, sin = rope.cos[: sample.shape[1]], rope.sin[: sample.shape[1]]
    weights: dict[str, Tensor] = {"output_norm.weight": target.output_norm}
    for i in range(c.layers):
        which = t.layers - c.layers + i
        layer, at = target.layers[which], f"blk.{i}."
        qkv = layer.qkv.float() * layer.attn_norm
        q, k, v = torch.split_with_sizes(qkv, (q_rows, kv_rows, kv_rows))
        queries, keys, _ = target.project(layer, inputs[which], cos, sin)
        weights |= {
            at + "attn_q.weight": q,
            at + "attn_k.weight": k,
            at + "attn_v.weight": v,
            at + "attn_q_norm.weight": _rms(queries).expand(c.head_dim),
            at + "attn_k_norm.weight": _rms(keys).expand(c.head_dim),
            at + "attn_output.weight": layer.output,
            at + "ffn_norm.weight": layer.ffn_norm,
            at + "ffn_gate.weight": layer.gate_up[: c.ffn],
            at + "ffn_up.weight": layer.gate_up[c.ffn :],
            at + "ffn_down.weight": layer.down,
        }
    # The context begins as the latest tap alone; scale does not matter, a norm follows.
    fc = net.weight("dflash.fc.weight").detach() * 0.1
    last = net.feature_rms[-c.hidden :]
    fc[:, -c.hidden :] += torch.diag(last / last.mean())
    load_weights(net, weights | {"dflash.fc.weight": fc})
    return True


def _rms(x: Tensor) -> Tensor:
    return x.float().square().mean().sqrt()
