"""`llama`: RMS norm, grouped-query attention with rotary embedding, SwiGLU."""

from dataclasses import dataclass

import torch

from pydflash.checkpoint.files import Checkpoint
from pydflash.checkpoint.meta import Meta
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels.ops import AttnArgs, AttnLayer, PagedKV, StepBatch
from pydflash.layers.rope import RopeSpec, rope_table
from pydflash.models.assemble import assemble
from pydflash.models.base import Block, Decoder
from pydflash.models.bind import Binder, block_count, vocab_rows
from pydflash.models.ffn import MoeConfig, feed_forward, ffn_width
from pydflash.state.base import PagedKVSpec, StateSpec

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The dimensions a dense decoder file states. Letters as in `kernels.ops`."""

    arch: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    eps: float
    rope: RopeSpec
    qk_norm: bool
    moe: MoeConfig | None = None

    @property
    def width(self) -> int:
        """Floats that a token takes while a layer runs, about."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = q + 2 * kv + 2 * q
        return 2 * self.hidden + max(attention, ffn_width(self.hidden, self.ffn, self.moe))

    def state_specs(self) -> list[StateSpec]:
        return [
            PagedKVSpec(layer=i, kv_heads=self.kv_heads, head_dim=self.head_dim)
            for i in range(self.layers)
        ]

    @classmethod
    def read(
        cls, checkpoint: Checkpoint, *, interleaved: bool, qk_norm: bool, experts: bool = False
    ) -> "Config":
        """Read every `{arch}.` key that means something here."""
        meta, vocab = checkpoint.meta, vocab_rows(checkpoint)
        if meta.int("{arch}.expert_count", default=0) and not experts:
            raise UnsupportedError(f"{meta.arch} with mixture-of-experts layers is not built yet")
        hidden = meta.int("{arch}.embedding_length")
        heads = meta.int("{arch}.attention.head_count")
        if hidden <= 0 or heads <= 0:
            raise CheckpointError("embedding_length and attention.head_count must be above 0")
        head_dim = meta.int("{arch}.attention.key_length", default=hidden // heads)
        if meta.int("{arch}.attention.value_length", default=head_dim) != head_dim:
            raise UnsupportedError(
                f"{meta.arch}: keys and values of different length are not built yet"
            )
        kv_heads = meta.int("{arch}.attention.head_count_kv", default=heads)
        if kv_heads <= 0 or heads % kv_heads:
            raise CheckpointError(f"{heads} attention heads do not divide over {kv_heads} kv heads")
        config = cls(
            arch=meta.arch,
            layers=block_count(checkpoint),
            hidden=hidden,
            ffn=1 if experts else meta.int("{arch}.feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab=vocab,
            max_positions=meta.int("{arch}.context_length"),
            eps=meta.float("{arch}.attention.layer_norm_rms_epsilon"),
            rope=_rope(meta, head_dim, interleaved),
            qk_norm=qk_norm,
            moe=MoeConfig.read(meta) if experts else None,
        )
        if min(config.layers, config.ffn, config.head_dim, config.max_positions) <= 0:
            raise CheckpointError(
                "block_count, feed_forward_length, attention.key_length and context_length must be above 0"
            )
        meta.ignore(
            "{arch}.vocab_size",
            "{arch}.feed_forward_length",
            "{arch}.expert_used_count",
            "{arch}.rope.scaling.finetuned",
        )
        return config


class AttentionBlock:
    """norm, attention, residual; norm, feed-forward, residual: two op calls."""

    def __init__(self, bind: Binder, config: Config, layer: int, args: AttnArgs) -> None:
        c, at = config, f"blk.{layer}."
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.ops = bind.ops
        self.attention = AttnLayer(
            norm=bind.vector(at + "attn_norm.weight", c.hidden),
            eps=c.eps,
            qkv=bind.weight(
                {at + "attn_q.weight": q, at + "attn_k.weight": kv, at + "attn_v.weight": kv},
                c.hidden,
                bias=True,
            ),
            args=args,
            output=bind.weight({at + "attn_output.weight": c.hidden}, q, bias=True),
        )
        self.ffn = feed_forward(
            bind, at, "ffn_norm", hidden=c.hidden, ffn=c.ffn, eps=c.eps, moe=c.moe
        )

    def forward(self, x: Tensor, state: PagedKV, batch: StepBatch) -> Tensor:
        x = self.ops.attention_layer(x, self.attention, state, batch)
        return self.ffn.forward(x, batch.spans)


def describe(checkpoint: Checkpoint) -> Config:
    """What a `llama` file says of itself. Its q and k rows are stored for interleaved rotation."""
    return Config.read(checkpoint, interleaved=True, qk_norm=False)


def load(bind: Binder, config: Config, max_positions: int) -> Decoder:
    """Bind the tensors `config` describes. Rotary tables cover `max_positions`."""
    c = config
    if c.moe is not None:
        bind.ops.require("moe")
    factors = bind.vector_or_none("rope_freqs.weight", c.rope.dims // 2)
    rope = rope_table(c.rope, max_positions, factors, bind.ops.device)

    def block(layer: int) -> Block:
        at = f"blk.{layer}.attn_"
        args = AttnArgs(
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            scale=c.head_dim**-0.5,
            rope=rope,
            q_norm=bind.vector(at + "q_norm.weight", c.head_dim) if c.qk_norm else None,
            k_norm=bind.vector(at + "k_norm.weight", c.head_dim) if c.qk_norm else None,
            eps=c.eps,
        )
        return AttentionBlock(bind, c, layer, args)

    return assemble(bind, c, block, max_positions)


def _rope(meta: Meta, head_dim: int, interleaved: bool) -> RopeSpec:
    key = "{arch}.rope.scaling."
    kind = meta.str(key + "type", default="none")
    factor = meta.float(key + "factor", default=0.0) or meta.float(
        "{arch}.rope.scale_linear", default=1.0
    )
    if kind == "none" and factor != 1.0 and key + "type" not in meta:
        kind = "linear"  # files from before rope.scaling.type
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedError(f"rope scaling {kind!r} is not built yet; known: none, linear, yarn")
    original = meta.int(key + "original_context_length", default=0)
    if kind == "yarn" and (original <= 0 or factor <= 0):
        raise CheckpointError("yarn rope needs rope.scaling.factor and original_context_length")
    dims = meta.int("{arch}.rope.dimension_count", default=head_dim)
    if not 0 < dims <= head_dim or dims % 2:
        raise CheckpointError(
            f"{meta.arch}.rope.dimension_count is {dims}; it must be even and at most the head "
            f"dimension {head_dim}"
        )
    return RopeSpec(
        dims=dims,
        base=meta.float("{arch}.rope.freq_base", default=10000.0),
        interleaved=interleaved,
        scaling="linear" if kind == "linear" else "yarn" if kind == "yarn" else "none",
        factor=factor,
        original_ctx=original,
        attn_factor=meta.float(
            key + "attn_factor", default=meta.float(key + "yarn_attn_factor", default=1.0)
        ),
        ext_factor=meta.float(key + "yarn_ext_factor", default=1.0),
        beta_fast=meta.float(key + "yarn_beta_fast", default=32.0),
        beta_slow=meta.float(key + "yarn_beta_slow", default=1.0),
    )
