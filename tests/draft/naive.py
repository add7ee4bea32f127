"""The drafter network written out in float64, one sequence, nothing cached: what every test compares with.

After `docs/speculation.md`, not after the code: the context's rows go through every layer's k and v, the
block's rows through all of it.
"""

from collections.abc import Mapping

import torch

from pydflash.draft.config import DraftConfig
from pydflash.layers.rope import rope_table

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def draft_logits(
    c: DraftConfig,
    w: Tensors,
    *,
    features: Tensor,
    first: int,
    anchor: int,
    length: int,
    embd: Tensor,
    output: Tensor,
) -> tuple[Tensor, Tensor]:
    """Logits float64 [S, Vd] of the drafted slots and their normed hidden states [S, E].

    features [n, F] of positions first.., a block of `length` behind them; embd, output [V, E].
    """
    w = {name: x.double() for name, x in w.items()}
    context = _context(c, w, features.double())
    mask = w.get("dflash.mask_embedding", embd[c.mask_token]).double()
    x = torch.stack([embd[anchor].double(), *[mask] * (length - 1)])
    at = torch.arange(first, first + len(features) + length)
    for i in range(c.layers):
        own = {n.removeprefix(f"blk.{i}."): t for n, t in w.items() if n.startswith(f"blk.{i}.")}
        h = norm(x, own["attn_norm.weight"], c.eps)
        dynamic = None
        if c.conv is not None:
            dynamic = _dynamic(c, own, "attn_conv", h)
            h = _convolve(c, own["attn_conv.base"][0], dynamic[:, 0], h)
        attended = _attention(c, own, i, h, context, at)
        out = attended @ own["attn_output.weight"].T + own.get("attn_output.bias", 0)
        if dynamic is not None:
            out = _convolve(c, own["attn_conv.base"][1], dynamic[:, 1], out)
        x = x + out
        h = norm(x, own["ffn_norm.weight"], c.eps)
        if c.conv is not None:
            dynamic = _dynamic(c, own, "ffn_conv", h)
            h = _convolve(c, own["ffn_conv.base"][0], dynamic[:, 0], h)
        gate, up = h @ own["ffn_gate.weight"].T, h @ own["ffn_up.weight"].T
        out = (gate * gate.sigmoid() * up) @ own["ffn_down.weight"].T
        if dynamic is not None:
            out = _convolve(c, own["ffn_conv.base"][1], dynamic[:, 1], out)
        x = x + out
    hidden = norm(x, w["output_norm.weight"], c.eps)
    if not c.from_anchor:
        hidden = hidden[1:]
    logits = hidden @ output.double().T * c.logit_scale
    if c.logit_softcap is not None:
        logits = c.logit_softcap * (logits / c.logit_softcap).tanh()
    return logits, hidden


def _context(c: DraftConfig, w: Tensors, features: Tensor) -> Tensor:
    if "dflash.aux_hidden_norm.0.weight" in w:
        parts = features.chunk(len(c.target_layers), -1)
        features = torch.cat(
            [
                norm(part, w[f"dflash.aux_hidden_norm.{j}.weight"], c.eps)
                for j, part in enumerate(parts)
            ],
            -1,
        )
    return norm(features @ w["dflash.fc.weight"].T, w["dflash.hidden_norm.weight"], c.eps)


def _attention(
    c: DraftConfig, own: Tensors, layer: int, h: Tensor, context: Tensor, at: Tensor
) -> Tensor:
    """h [B, E], context [n, E], at [n + B] absolute positions -> [B, H * D]."""
    if c.context_norm:
        context = norm(context, own["attn_norm.weight"], c.eps)
    both = torch.cat((context, h))

    def heads(x: Tensor, part: str, count: int) -> Tensor:
        y = x @ own[f"attn_{part}.weight"].T + own.get(f"attn_{part}.bias", 0)
        return y.view(len(x), count, c.head_dim)

    q, k = heads(h, "q", c.heads), heads(both, "k", c.kv_heads)
    v = heads(both, "v", c.kv_heads)
    q = _turn(c, norm(q, own["attn_q_norm.weight"], c.eps), at[len(context) :])
    k = _turn(c, norm(k, own["attn_k_norm.weight"], c.eps), at)
    group = c.heads // c.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    ahead = at[None, :] - at[len(context) :, None]
    seen = ahead <= 0 if c.causal[layer] else torch.ones_like(ahead, dtype=torch.bool)
    window = c.windows[layer]
    if window is not None:
        seen &= ahead.abs() < window
    scores = torch.einsum("bhd,shd->hbs", q, k) * c.head_dim**-0.5
    scores = scores.masked_fill(~seen, float("-inf"))
    out = torch.einsum("hbs,shd->bhd", scores.softmax(-1), v)
    if "attn_gate.weight" in own:
        gates = torch.nn.functional.softplus(h @ own["attn_gate.weight"].T)
        out = out * gates.view(len(h), c.heads, -1)
    return out.flatten(1)


def _turn(c: DraftConfig, x: Tensor, at: Tensor) -> Tensor:
    table = rope_table(c.rope, int(at.max()) + 1, None, torch.device("cpu"))
    half = c.rope.dims // 2
    cos, sin = table.cos.double()[at][:, None], table.sin.double()[at][:, None]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def _dynamic(c: DraftConfig, own: Tensors, side: str, h: Tensor) -> Tensor:
    assert c.conv is not None
    return (h @ own[f"{side}.proj.weight"].T).view(len(h), 2, c.conv.width, -1)


def _convolve(c: DraftConfig, base: Tensor, dynamic: Tensor, x: Tensor) -> Tensor:
    """base [W, E], dynamic [B, W, groups], x [B, E]: slot by slot, tap by tap."""
    assert c.conv is not None
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for k in range(c.conv.width):
            if t >= k:
                out[t] += (base[k] + dynamic[t, k].repeat_interleave(c.conv.group)) * x[t - k]
    return out
