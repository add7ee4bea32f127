"""`qwen35` (Qwen3.5 and Qwen3.6, dense): Gated DeltaNet, every `interval`-th layer gated attention.

Text only: the three position planes of the rotary sections are equal, which makes it plain partial rotation.
Extra blocks that predict further tokens (MTP) are left out.
"""

from dataclasses import dataclass

import torch

from pydflash.checkpoint.files import Checkpoint
from pydflash.checkpoint.meta import Meta
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels.ops import (
    AttnArgs,
    AttnLayer,
    DeltaArgs,
    DeltaLayer,
    PagedKV,
    Recurrent,
    Rope,
    StepBatch,
)
from pydflash.layers.rope import RopeSpec, rope_table
from pydflash.models.assemble import assemble
from pydflash.models.base import Block, Decoder
from pydflash.models.bind import Binder, block_count, layer_of, vocab_rows
from pydflash.models.ffn import FeedForward, MoeConfig, feed_forward, ffn_width
from pydflash.state.base import PagedKVSpec, RecurrentSpec, StateSpec

Tensor = torch.Tensor

_CONTEXT = 262144  # of the family, for files that do not say


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaConfig:
    """The `{arch}.ssm.` keys: sizes of the Gated DeltaNet layers. Letters as in `kernels.ops`."""

    width: int
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int

    @property
    def inner(self) -> int:
        return self.v_heads * self.v_dim

    @property
    def channels(self) -> int:
        return 2 * self.k_heads * self.k_dim + self.inner

    @classmethod
    def read(cls, meta: Meta) -> "DeltaConfig":
        key = "{arch}.ssm."
        inner = meta.int(key + "inner_size")
        v_heads = meta.int(key + "time_step_rank")
        k_heads = meta.int(key + "group_count")
        width, k_dim = meta.int(key + "conv_kernel"), meta.int(key + "state_size")
        if min(inner, v_heads, k_heads, k_dim) <= 0 or width < 2:
            raise CheckpointError(
                f"{meta.arch}.ssm: inner_size, time_step_rank, group_count and state_size must be above "
                "0 and conv_kernel above 1; download or convert the file again"
            )
        if inner % v_heads or v_heads % k_heads:
            raise CheckpointError(
                f"{meta.arch}.ssm: {inner} inner features do not divide over {v_heads} value heads, "
                f"or these over {k_heads} key heads; download or convert the file again"
            )
        return cls(
            width=width, k_heads=k_heads, v_heads=v_heads, k_dim=k_dim, v_dim=inner // v_heads
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The dimensions a hybrid file states. `layers` leaves MTP blocks out."""

    arch: str
    layers: int
    interval: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    eps: float
    rope: RopeSpec
    delta: DeltaConfig
    moe: MoeConfig | None

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    @property
    def width(self) -> int:
        """Floats that a token takes while a layer runs, about."""
        q, kv, d = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.delta
        attention = 2 * q + 2 * kv + 2 * q
        delta = 2 * d.channels + 2 * d.inner + 4 * d.v_heads
        return 2 * self.hidden + max(attention, delta, ffn_width(self.hidden, self.ffn, self.moe))

    def state_specs(self) -> list[StateSpec]:
        return [self._spec(layer) for layer in range(self.layers)]

    def _spec(self, layer: int) -> StateSpec:
        if self.is_attention(layer):
            return PagedKVSpec(layer=layer, kv_heads=self.kv_heads, head_dim=self.head_dim)
        d = self.delta
        return RecurrentSpec(
            layer=layer,
            conv_channels=d.channels,
            conv_width=d.width,
            k_heads=d.k_heads,
            heads=d.v_heads,
            k_dim=d.k_dim,
            v_dim=d.v_dim,
        )

    @classmethod
    def read(cls, checkpoint: Checkpoint, *, experts: bool) -> "Config":
        """Read every `{arch}.` key that means something here."""
        meta = checkpoint.meta
        head_dim = meta.int("{arch}.attention.key_length")
        if meta.int("{arch}.attention.value_length") != head_dim:
            raise UnsupportedError(
                f"{meta.arch}: attention.value_length must equal key_length ({head_dim})"
            )
        config = cls(
            arch=meta.arch,
            layers=_layers(checkpoint),
            interval=meta.int("{arch}.full_attention_interval"),
            hidden=meta.int("{arch}.embedding_length"),
            ffn=1 if experts else meta.int("{arch}.feed_forward_length"),
            heads=meta.int("{arch}.attention.head_count"),
            kv_heads=meta.int("{arch}.attention.head_count_kv"),
            head_dim=head_dim,
            vocab=vocab_rows(checkpoint),
            max_positions=meta.int("{arch}.context_length", default=_CONTEXT),
            eps=meta.float("{arch}.attention.layer_norm_rms_epsilon", default=1e-6),
            rope=_rope(meta, head_dim),
            delta=DeltaConfig.read(meta),
            moe=MoeConfig.read(meta) if experts else None,
        )
        _check(config)
        meta.ignore(
            "{arch}.vocab_size", "{arch}.feed_forward_length", "{arch}.nextn_predict_layers"
        )
        return config


class AttentionBlock:
    """Gated attention, then feed-forward."""

    def __init__(self, bind: Binder, config: Config, layer: int, rope: Rope) -> None:
        c, at = config, f"blk.{layer}."
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.ops = bind.ops
        self.attention = AttnLayer(
            norm=bind.vector(at + "attn_norm.weight", c.hidden),
            eps=c.eps,
            # attn_q packs [q | gate] of each head.
            qkv=bind.weight(
                {at + "attn_q.weight": 2 * q, at + "attn_k.weight": kv, at + "attn_v.weight": kv},
                c.hidden,
            ),
            args=AttnArgs(
                heads=c.heads,
                kv_heads=c.kv_heads,
                head_dim=c.head_dim,
                scale=c.head_dim**-0.5,
                rope=rope,
                q_norm=bind.vector(at + "attn_q_norm.weight", c.head_dim),
                k_norm=bind.vector(at + "attn_k_norm.weight", c.head_dim),
                eps=c.eps,
                gated=True,
            ),
            output=bind.weight({at + "attn_output.weight": c.hidden}, q),
        )
        self.ffn = _feed_forward(bind, c, at)

    def forward(self, x: Tensor, state: PagedKV, batch: StepBatch) -> Tensor:
        x = self.ops.attention_layer(x, self.attention, state, batch)
        return self.ffn.forward(x, batch.spans)


class DeltaBlock:
    """Gated DeltaNet, then feed-forward."""

    def __init__(self, bind: Binder, config: Config, layer: int) -> None:
        c, d, at = config, config.delta, f"blk.{layer}."
        self.ops = bind.ops
        self.delta = DeltaLayer(
            norm=bind.vector(at + "attn_norm.weight", c.hidden),
            eps=c.eps,
            mixed=bind.weight(
                {
                    at + "attn_qkv.weight": d.channels,
                    at + "attn_gate.weight": d.inner,
                    at + "ssm_alpha.weight": d.v_heads,
                    at + "ssm_beta.weight": d.v_heads,
                },
                c.hidden,
            ),
            args=DeltaArgs(
                k_heads=d.k_heads,
                v_heads=d.v_heads,
                k_dim=d.k_dim,
                v_dim=d.v_dim,
                # Tap by tap in memory: kernels take channels side by side.
                conv=bind.matrix(at + "ssm_conv1d.weight", (d.channels, d.width)).T.contiguous().T,
                a=bind.vector(at + "ssm_a", d.v_heads),
                dt_bias=bind.vector(at + "ssm_dt.bias", d.v_heads),
                norm=bind.vector(at + "ssm_norm.weight", d.v_dim),
                eps=c.eps,
            ),
            output=bind.weight({at + "ssm_out.weight": c.hidden}, d.inner),
        )
        self.ffn = _feed_forward(bind, c, at)

    def forward(self, x: Tensor, state: Recurrent, batch: StepBatch) -> Tensor:
        x = self.ops.delta_layer(x, self.delta, state, batch)
        return self.ffn.forward(x, batch.spans)


def describe(checkpoint: Checkpoint) -> Config:
    """What a `qwen35` file says of itself."""
    return Config.read(checkpoint, experts=False)


def load(bind: Binder, config: Config, max_positions: int) -> Decoder:
    """Bind the tensors `config` describes. Rotary tables cover `max_positions`."""
    c = config
    bind.ops.require("delta_layer", "delta_commit", *(["moe"] if c.moe else []))
    bind.ignore(["*.nextn.*", "mtp.*", "*.input_scale"])
    for name in bind.checkpoint.tensors:
        if layer_of(name) >= c.layers:
            bind.ignore([name])
    rope = rope_table(c.rope, max_positions, None, bind.ops.device)

    def block(layer: int) -> Block:
        if c.is_attention(layer):
            return AttentionBlock(bind, c, layer, rope)
        return DeltaBlock(bind, c, layer)

    return assemble(bind, c, block, max_positions)


def _feed_forward(bind: Binder, c: Config, at: str) -> FeedForward:
    return feed_forward(
        bind, at, "post_attention_norm", hidden=c.hidden, ffn=c.ffn, eps=c.eps, moe=c.moe
    )


def _layers(checkpoint: Checkpoint) -> int:
    """Blocks that are layers: those counted, less those at the end that predict further tokens."""
    count = block_count(checkpoint)
    extra = {layer_of(name) for name in checkpoint.tensors if ".nextn." in name}
    while count and count - 1 in extra:
        count -= 1
    return count


def _rope(meta: Meta, head_dim: int) -> RopeSpec:
    sections = meta.ints("{arch}.rope.dimension_sections")
    rotated = 2 * sum(sections)
    if len(sections) < 4 or min(sections) < 0 or not 0 < rotated <= head_dim:
        raise CheckpointError(
            f"{meta.arch}.rope.dimension_sections {sections} must be at least four counts whose sum "
            f"rotates between 2 and {head_dim} dimensions; download or convert the file again"
        )
    dims = meta.int("{arch}.rope.dimension_count", default=64)
    if not 0 < dims <= head_dim or dims % 2:
        raise CheckpointError(
            f"{meta.arch}.rope.dimension_count is {dims}; it must be even and at most the head "
            f"dimension {head_dim}"
        )
    scaling = meta.str("{arch}.rope.scaling.type", default="none")
    if scaling != "none":
        raise UnsupportedError(f"{meta.arch} with rope scaling {scaling!r} is not built yet")
    base = meta.float("{arch}.rope.freq_base", default=1e7)
    return RopeSpec(dims=dims, base=base, interleaved=False)


def _check(c: Config) -> None:
    if min(c.layers, c.interval, c.hidden, c.ffn, c.heads, c.head_dim, c.max_positions) <= 0:
        raise CheckpointError(
            f"{c.arch}: block_count, full_attention_interval, embedding_length, feed_forward_length, "
            "attention.head_count, key_length and context_length must be above 0"
        )
    if c.kv_heads <= 0 or c.heads % c.kv_heads:
        raise CheckpointError(f"{c.heads} attention heads do not divide over {c.kv_heads} kv heads")
    if c.layers % c.interval:
        raise CheckpointError(
            f"{c.arch}: {c.layers} blocks are not whole groups of {c.interval} "
            "(full_attention_interval); download or convert the file again"
        )
