"""DenseTarget: a llama or qwen3 file as batched torch, its weights dequantised once.

The residual stream is f32, products are in `dtype` (bf16 on a GPU, f32 on a CPU). Query and key rows are
reordered at load so that rotation is always of halves. Rows are padded on the right: causal attention
needs no mask for that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from pydflash.checkpoint.files import Checkpoint
from pydflash.errors import UnsupportedError
from pydflash.layers.rope import rope_table
from pydflash.models.llama import Config
from pydflash.models.load import describe
from pydflash.train.generate import generate
from pydflash.train.target import Order, TargetShape, head_name, matrix

Tensor = torch.Tensor
ARCHITECTURES = ("llama", "qwen3")


@dataclass(slots=True, kw_only=True)
class Layer:
    """One layer's weights: vectors f32, matrices in the working dtype."""

    attn_norm: Tensor
    qkv: Tensor
    bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


class DenseTarget:
    """Forward passes over right-padded rows and over a cache with one slot for each sequence."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        config = describe(checkpoint).config
        if not isinstance(config, Config) or config.arch not in ARCHITECTURES or config.moe:
            raise UnsupportedError(f"{checkpoint.meta.arch} is no dense llama or qwen3")
        self.config, self.device, self.dtype = config, device, dtype
        self.shape = TargetShape(
            arch=config.arch,
            layers=config.layers,
            hidden=config.hidden,
            vocab=config.vocab,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            ffn=config.ffn,
            eps=config.eps,
            rope_base=config.rope.base,
            max_positions=config.max_positions,
        )
        self._checkpoint = checkpoint
        factors = None
        if "rope_freqs.weight" in checkpoint.tensors:
            factors = matrix(checkpoint, "rope_freqs.weight", torch.device("cpu"))
        self.rope = rope_table(config.rope, config.max_positions, factors, device)
        self.token_embd = self._matrix("token_embd.weight")
        self.output = self._matrix(head_name(checkpoint))
        self.output_norm = self._vector("output_norm.weight")
        self.layers = [self._layer(i) for i in range(config.layers)]

    def embedding(self) -> Tensor:
        return self.token_embd.float()

    def head(self) -> Tensor:
        return self.output.float()

    @torch.inference_mode()
    def features(self, tokens: Tensor, layers: Sequence[int]) -> Tensor:
        """Outputs of `layers` side by side, f32 [R, T, n * E]."""
        taps: dict[int, Tensor] = {}
        self.run(tokens, lambda i, x: taps.__setitem__(i, x), stop_after=max(layers))
        return torch.cat([taps[i] for i in layers], -1)

    @torch.inference_mode()
    def logits(self, tokens: Tensor) -> Tensor:
        """f32 [R, T, V] of every position."""
        return self.score(self.run(tokens))

    def generate(self, order: Order, progress: Callable[[int], None]) -> list[list[int]]:
        return generate(self, order, progress)

    def score(self, x: Tensor) -> Tensor:
        """Residual stream [..., E] to logits f32 [..., V]."""
        return F.linear(self._norm(x, self.output_norm), self.output).float()

    def run(
        self,
        tokens: Tensor,
        tap: Callable[[int, Tensor], object] | None = None,
        keep: Callable[[int, Tensor, Tensor], object] | None = None,
        stop_after: int | None = None,
    ) -> Tensor:
        """Whole rows, causal. int64 [R, T] -> the residual stream f32 [R, T, E].

        `tap(layer, x)` sees each layer's output, `keep(layer, k, v)` its keys and values [R, G, T, D].
        """
        c = self.config
        x = self.token_embd[tokens].float()
        cos, sin = self.rope.cos[: tokens.shape[1]], self.rope.sin[: tokens.shape[1]]
        for i, layer in enumerate(self.layers):
            q, k, v = self.project(layer, x, cos, sin)
            if keep is not None:
                keep(i, k, v)
            if c.kv_heads != c.heads:
                k, v = (t.repeat_interleave(c.heads // c.kv_heads, 1) for t in (k, v))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self.finish(layer, x, seen.transpose(1, 2).flatten(2))
            if tap is not None:
                tap(i, x)
            if i == stop_after:
                break
        return x

    def project(
        self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, T, E] -> q [R, H, T, D], k and v [R, G, T, D], rotated. cos, sin [(R,) T, dims / 2]."""
        c = self.config
        qkv = F.linear(self._norm(x, layer.attn_norm), layer.qkv, layer.bias)
        qkv = qkv.view(*qkv.shape[:-1], -1, c.head_dim).transpose(1, 2)  # [R, H + 2 G, T, D]
        keys = c.heads + c.kv_heads
        q, k, v = qkv[:, : c.heads], qkv[:, c.heads : keys], qkv[:, keys:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        if cos.ndim == 3:
            cos, sin = cos[:, None], sin[:, None]
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, layer: Layer, x: Tensor, seen: Tensor) -> Tensor:
        """Output product, residual, feed-forward, residual. seen [R, T, H * D]."""
        x = x + F.linear(seen, layer.output, layer.output_bias).float()
        gate, up = F.linear(self._norm(x, layer.ffn_norm), layer.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer.down).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.config.eps).to(self.dtype)

    def _layer(self, i: int) -> Layer:
        c, at = self.config, f"blk.{i}."
        order = rotation_order(c) if c.rope.interleaved else None

        def rows(part: str) -> Tensor:
            value = matrix(self._checkpoint, f"{at}attn_{part}", self.device)
            if order is None or part[0] == "v":
                return value
            heads = value.view(-1, c.head_dim, *value.shape[1:])
            return heads[:, order.to(heads.device)].reshape(value.shape)

        def joined(kind: str) -> Tensor:
            return torch.cat([rows(f"{p}.{kind}") for p in "qkv"]).to(self.dtype)

        has = self._checkpoint.tensors.__contains__
        gate_up = torch.cat(
            [self._matrix(f"{at}ffn_gate.weight"), self._matrix(f"{at}ffn_up.weight")]
        )
        out_bias = f"{at}attn_output.bias"
        return Layer(
            attn_norm=self._vector(f"{at}attn_norm.weight"),
            qkv=joined("weight"),
            bias=joined("bias") if has(f"{at}attn_q.bias") else None,
            q_norm=self._vector(f"{at}attn_q_norm.weight") if c.qk_norm else None,
            k_norm=self._vector(f"{at}attn_k_norm.weight") if c.qk_norm else None,
            output=self._matrix(f"{at}attn_output.weight"),
            output_bias=self._matrix(out_bias) if has(out_bias) else None,
            ffn_norm=self._vector(f"{at}ffn_norm.weight"),
            gate_up=gate_up,
            down=self._matrix(f"{at}ffn_down.weight"),
        )

    def _matrix(self, name: str) -> Tensor:
        return matrix(self._checkpoint, name, self.device).to(self.dtype)

    def _vector(self, name: str) -> Tensor:
        return matrix(self._checkpoint, name, self.device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first 2 * cos.shape[-1] of the last axis, first half against second."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def rotation_order(config: Config) -> Tensor:
    """Where each row of a head that rotates by halves lies in one that rotates by pairs."""
    dims = config.rope.dims
    pairs = torch.arange(dims).view(-1, 2).T.flatten()
    return torch.cat([pairs, torch.arange(dims, config.head_dim)])
