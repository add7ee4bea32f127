"""DraftNet: the DFlash drafter with gradients: many blocks of many documents in one pass.

Parameters carry the canonical names of `draft.config` and are f32; products are in `dtype`. Embedding and
head are the target's, frozen and outside the parameters. Invariant: a block at anchor t attends to context
positions strictly before t and to its own slots, to nothing else.
Letters: R documents, T their width, N anchors, B slots of a block, E hidden, H heads, G kv heads,
D head size.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from pydflash.draft.config import DraftConfig
from pydflash.layers.rope import rope_table
from pydflash.train.dense import rotate

Tensor = torch.Tensor


class DraftNet(nn.Module):
    """v1 backbone, and the pairwise selector where the configuration has one."""

    def __init__(
        self,
        config: DraftConfig,
        embedding: Tensor,
        head: Tensor,
        ids: Tensor | None,
        *,
        dtype: torch.dtype,
        positions: int,
        seed: int = 0,
    ) -> None:
        """`embedding`, `head` f32 [V, E]; `ids` int64 [Vd] ascending, the tokens of a reduced vocabulary;
        `positions`: the longest document."""
        super().__init__()
        self.config, self.dtype = config, dtype
        device = embedding.device
        self.ids = torch.arange(config.vocab, device=device) if ids is None else ids.to(device)
        # Where a token stands in the draft vocabulary; one past its end for those outside.
        self.place = torch.full((config.vocab,), len(self.ids), device=device)
        self.place[self.ids] = torch.arange(len(self.ids), device=device)
        self.embedding = embedding.to(dtype)
        self.head = head[self.ids].to(dtype)  # [Vd, E]
        rope = rope_table(config.rope, positions + config.block_size, None, device)
        self.cos, self.sin = rope.cos, rope.sin
        width = len(config.target_layers) * config.target_hidden
        # What a feature is divided by before `fc`, so that every one matters alike at first. Folded away
        # on export.
        self.feature_rms = torch.ones(width, device=device)
        self.weights = nn.ParameterDict()
        rng = torch.Generator().manual_seed(seed)
        for name, shape in shapes(config, len(self.ids)).items():
            self.weights[_key(name)] = nn.Parameter(_start(name, shape, config, rng).to(device))

    def weight(self, name: str) -> Tensor:
        value: Tensor = self.weights[_key(name)]
        return value

    def scale_features(self, features: Tensor) -> None:
        """Take the root mean square of each feature from a sample [R, T, n * E].

        Without position 0: many models park enormous values there.
        """
        rms = features[:, 1:].float().flatten(0, -2).square().mean(0).sqrt()
        self.feature_rms = rms.clamp_min(rms.mean() * 1e-3 + 1e-6)

    def forward(self, features: Tensor, tokens: Tensor, anchors: Tensor, length: int) -> Tensor:
        """Hidden states of the slots behind each anchor, f32 [R, N, length - 1, E].

        features [R, T, n * E]; tokens int64 [R, T]; anchors int64 [R, N] positions.
        """
        c = self.config
        context = self._linear(features / self.feature_rms, "dflash.fc.weight").float()
        context = self._norm(context, "dflash.hidden_norm.weight")  # [R, T, E]
        block = torch.full((*anchors.shape, length), c.mask_token, device=tokens.device)
        block[..., 0] = tokens.gather(1, anchors)
        x = self.embedding[block].float()  # [R, N, B, E]
        slot = torch.arange(length, device=tokens.device)
        at = anchors[..., None] + slot  # [R, N, B]
        before = torch.arange(tokens.shape[1], device=tokens.device) < anchors[..., None]
        hidden_ctx = ~before[:, None, None, :, None]  # [R, 1, 1, N, 1, T]
        later = slot > slot[:, None]  # [B, B]
        for i in range(c.layers):
            x = self._layer(i, x, context, at, hidden_ctx, later if c.causal[i] else None)
        return self._norm(x[:, :, 1:], "output_norm.weight", torch.float32)

    def unary(self, hidden: Tensor) -> Tensor:
        """The slots' own logits, f32 [..., Vd]."""
        return F.linear(hidden.to(self.dtype), self.head).float()

    def pairwise(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """What the selector adds after tokens `previous` [...] to every candidate, f32 [..., Vd]."""
        return F.linear(
            self.gate(hidden, previous), self.weight("dflash.selector.succ_cb").to(self.dtype)
        ).float()

    def gate(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """A[previous] * (W h), [..., rank]; 0 for a token outside the draft vocabulary."""
        codes = self.weight("dflash.selector.pred_cb").to(self.dtype)
        codes = torch.cat([codes, codes.new_zeros(1, codes.shape[1])])
        return codes[self.place[previous]] * self._linear(hidden, "dflash.selector.hproj.weight")

    def export(self) -> dict[str, Tensor]:
        """Canonical names to tensors on the CPU, f32, as `draft.layout` shapes them.

        A reduced vocabulary has its `d2t`; the target's own rows are its head, and the codes of tokens
        outside it, which were never trained, are 0.
        """
        tensors = {_name(key): v.detach().float().cpu() for key, v in self.weights.items()}
        tensors["dflash.fc.weight"] = tensors["dflash.fc.weight"] / self.feature_rms.cpu()
        if self.config.draft_vocab is not None:
            ids = self.ids.cpu()
            tensors["d2t"] = ids - torch.arange(len(ids))
            codes = tensors.get("dflash.selector.pred_cb")
            if codes is not None:
                every = torch.zeros(self.config.vocab, codes.shape[1])
                tensors["dflash.selector.pred_cb"] = every.index_copy_(0, ids, codes)
        return tensors

    def _layer(
        self,
        i: int,
        x: Tensor,
        context: Tensor,
        at: Tensor,
        hidden_ctx: Tensor,
        later: Tensor | None,
    ) -> Tensor:
        name = f"blk.{i}."
        y = self._norm(x, name + "attn_norm.weight")
        seen = self._attend(name, y, context, at, hidden_ctx, later)
        x = x + self._linear(seen, name + "attn_output.weight").float()
        y = self._norm(x, name + "ffn_norm.weight")
        y = F.silu(self._linear(y, name + "ffn_gate.weight")) * self._linear(
            y, name + "ffn_up.weight"
        )
        return x + self._linear(y, name + "ffn_down.weight").float()

    def _attend(
        self,
        name: str,
        y: Tensor,
        context: Tensor,
        at: Tensor,
        hidden_ctx: Tensor,
        later: Tensor | None,
    ) -> Tensor:
        """One softmax over context and own block. y [R, N, B, E] -> [R, N, B, H * D]."""
        c = self.config
        group = c.heads // c.kv_heads
        r, n, b, _ = y.shape
        where = torch.arange(context.shape[1], device=y.device)
        q = self._heads(y, name + "attn_q", at)  # [R, N, B, H, D]
        k_own = self._heads(y, name + "attn_k", at)
        v_own = _split(self._linear(y, name + "attn_v.weight"), c.head_dim)
        k = self._heads(context, name + "attn_k", where)  # [R, T, G, D]
        v = _split(self._linear(context, name + "attn_v.weight"), c.head_dim)
        q = q.view(r, n, b, c.kv_heads, group, c.head_dim).permute(0, 3, 4, 1, 2, 5)
        q = q * c.head_dim**-0.5  # [R, G, g, N, B, D]
        flat = q.reshape(r, c.kv_heads, -1, c.head_dim)
        far = flat @ k.permute(0, 2, 3, 1)  # [R, G, g * N * B, T]
        far = far.view(r, c.kv_heads, group, n, b, -1).masked_fill(hidden_ctx, -torch.inf)
        k_own = k_own.permute(0, 3, 1, 2, 4)[:, :, None]  # [R, G, 1, N, B, D]
        v_own = v_own.permute(0, 3, 1, 2, 4)[:, :, None]
        near = q @ k_own.transpose(-1, -2)  # [R, G, g, N, B, B]
        if later is not None:
            near = near.masked_fill(later, -torch.inf)
        weights = torch.cat([far, near], -1).softmax(-1)
        far, near = weights[..., :-b], weights[..., -b:]
        seen = far.reshape(r, c.kv_heads, group * n * b, -1) @ v.transpose(1, 2)
        seen = seen.view(r, c.kv_heads, group, n, b, -1) + near @ v_own
        return seen.permute(0, 3, 4, 1, 2, 5).reshape(r, n, b, -1)

    def _heads(self, x: Tensor, name: str, at: Tensor) -> Tensor:
        """Project to heads, normalise each, rotate. [..., E] -> [..., heads, D]."""
        heads = _split(self._linear(x, name + ".weight"), self.config.head_dim)
        heads = self._norm(heads, name + "_norm.weight")
        return rotate(heads, self.cos[at].unsqueeze(-2), self.sin[at].unsqueeze(-2))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x.to(self.dtype), self.weight(name).to(self.dtype))

    def _norm(self, x: Tensor, name: str, dtype: torch.dtype | None = None) -> Tensor:
        weight = self.weight(name)
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.config.eps).to(dtype or self.dtype)


def shapes(config: DraftConfig, draft_vocab: int) -> dict[str, tuple[int, ...]]:
    """Canonical names of the trained tensors and their shapes."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    named: dict[str, tuple[int, ...]] = {
        "dflash.fc.weight": (c.hidden, len(c.target_layers) * c.target_hidden),
        "dflash.hidden_norm.weight": (c.hidden,),
        "output_norm.weight": (c.hidden,),
    }
    for i in range(c.layers):
        at = f"blk.{i}."
        named |= {
            at + "attn_norm.weight": (c.hidden,),
            at + "attn_q.weight": (q, c.hidden),
            at + "attn_k.weight": (kv, c.hidden),
            at + "attn_v.weight": (kv, c.hidden),
            at + "attn_output.weight": (c.hidden, q),
            at + "attn_q_norm.weight": (c.head_dim,),
            at + "attn_k_norm.weight": (c.head_dim,),
            at + "ffn_norm.weight": (c.hidden,),
            at + "ffn_gate.weight": (c.ffn, c.hidden),
            at + "ffn_up.weight": (c.ffn, c.hidden),
            at + "ffn_down.weight": (c.hidden, c.ffn),
        }
    if c.selector is not None:
        rank = c.selector.rank
        named["dflash.selector.hproj.weight"] = (rank, c.hidden)
        named["dflash.selector.pred_cb"] = (draft_vocab, rank)
        named["dflash.selector.succ_cb"] = (draft_vocab, rank)
    return named


def load_weights(net: DraftNet, tensors: Mapping[str, Tensor]) -> None:
    """Set parameters by canonical name (as in `weights`, not as exported)."""
    with torch.no_grad():
        for name, value in tensors.items():
            net.weight(name).copy_(value)


def _start(name: str, shape: tuple[int, ...], config: DraftConfig, rng: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    if name.endswith("succ_cb"):
        return torch.zeros(shape)  # the selector begins by changing nothing
    std = shape[1] ** -0.5
    if name.endswith(("attn_output.weight", "ffn_down.weight")):
        std *= (2 * config.layers) ** -0.5
    values: Tensor = torch.randn(shape, generator=rng) * std
    return values


def _split(x: Tensor, head_dim: int) -> Tensor:
    return x.view(*x.shape[:-1], -1, head_dim)  # [..., heads, D]


def _key(name: str) -> str:
    return name.replace(".", ":")


def _name(key: str) -> str:
    return key.replace(":", ".")
