"""DraftLayer: one layer of the drafter over a block, reading the context's keys and values from the ring."""

import torch

from pydflash.draft.config import DraftConfig
from pydflash.draft.conv import Conv, convolve
from pydflash.draft.tensors import DraftTensors
from pydflash.errors import CheckpointError
from pydflash.kernels.ops import AttnArgs, AttnLayer, DenseLayer, PagedKV, Rope, StepBatch, Weight
from pydflash.kernels.ref.pointwise import activate, rms_norm

Tensor = torch.Tensor


class DraftLayer:
    """norm, attention, residual; norm, SwiGLU, residual. Two op calls, without convolutions or gates."""

    def __init__(self, tensors: DraftTensors, config: DraftConfig, index: int, rope: Rope) -> None:
        c, at = config, f"blk.{index}."
        self._ops = tensors.ops
        self.attention = AttnLayer(
            norm=tensors.dense(at + "attn_norm.weight", c.hidden),
            eps=c.eps,
            qkv=tensors.weight(
                at + "attn_q.weight",
                at + "attn_k.weight",
                at + "attn_v.weight",
                cols=c.hidden,
                bias=True,
            ),
            args=AttnArgs(
                heads=c.heads,
                kv_heads=c.kv_heads,
                head_dim=c.head_dim,
                scale=c.head_dim**-0.5,
                rope=rope,
                q_norm=tensors.dense(at + "attn_q_norm.weight", c.head_dim),
                k_norm=tensors.dense(at + "attn_k_norm.weight", c.head_dim),
                eps=c.eps,
                window=c.windows[index],
                causal=c.causal[index],
            ),
            output=tensors.weight(at + "attn_output.weight", cols=c.heads * c.head_dim, bias=True),
        )
        self.ffn = DenseLayer(
            norm=tensors.dense(at + "ffn_norm.weight", c.hidden),
            eps=c.eps,
            gate_up=tensors.weight(at + "ffn_gate.weight", at + "ffn_up.weight", cols=c.hidden),
            down=tensors.weight(at + "ffn_down.weight", cols=c.ffn),
            act="silu",
        )
        want = (c.heads + 2 * c.kv_heads) * c.head_dim
        if self.attention.qkv.rows != want or self.ffn.gate_up.rows != 2 * c.ffn:
            raise CheckpointError(
                f"the drafter's layer {index} has {self.attention.qkv.rows} rows of q, k and v and "
                f"{self.ffn.gate_up.rows} of gate and up, its configuration implies {want} and "
                f"{2 * c.ffn}; download or convert it again"
            )
        gate = at + "attn_gate.weight"
        self._gate = tensors.weight(gate, cols=c.hidden) if tensors.has(gate) else None
        self._convs: tuple[Conv, Conv] | None = None
        if c.conv is not None:
            self._convs = (
                Conv(tensors, at + "attn_conv", c.conv, c.hidden),
                Conv(tensors, at + "ffn_conv", c.conv, c.hidden),
            )

    def forward(self, x: Tensor, kv: PagedKV, batch: StepBatch, block: int) -> Tensor:
        """x f32 [R * block, E] of R blocks -> the same; may overwrite x."""
        if self._gate is None and self._convs is None:
            x = self._ops.attention_layer(x, self.attention, kv, batch)
            return self._ops.dense_layer(x, self.ffn, batch.spans)
        return self._dense(self._attend(x, kv, batch, block), batch, block)

    def _attend(self, x: Tensor, kv: PagedKV, batch: StepBatch, block: int) -> Tensor:
        ops, layer = self._ops, self.attention
        h, after = self._before(0, rms_norm(x, layer.norm, layer.eps), batch, block)
        qkv = ops.linear(h, layer.qkv, batch.spans)
        attended = ops.attention(qkv, kv, layer.args, batch)
        if self._gate is not None:
            gates = torch.nn.functional.softplus(ops.linear(h, self._gate, batch.spans))
            heads = attended.view(len(x), layer.args.heads, -1)
            attended = (heads * gates.view(len(x), layer.args.heads, -1)).view_as(attended)
        return self._add(x, attended, layer.output, after, batch, block)

    def _dense(self, x: Tensor, batch: StepBatch, block: int) -> Tensor:
        layer = self.ffn
        h, after = self._before(1, rms_norm(x, layer.norm, layer.eps), batch, block)
        gate, up = self._ops.linear(h, layer.gate_up, batch.spans).chunk(2, -1)
        return self._add(x, activate(gate, up, layer.act), layer.down, after, batch, block)

    def _before(
        self, side: int, h: Tensor, batch: StepBatch, block: int
    ) -> tuple[Tensor, Tensor | None]:
        """The sublayer's input, convolved, and the taps for its output."""
        if self._convs is None:
            return h, None
        before, after = self._convs[side].kernels(h, batch.spans)
        return convolve(h, before, block), after

    def _add(
        self,
        x: Tensor,
        h: Tensor,
        weight: Weight,
        after: Tensor | None,
        batch: StepBatch,
        block: int,
    ) -> Tensor:
        if after is None:
            return self._ops.linear_add(h, weight, x, batch.spans)
        return x + convolve(self._ops.linear(h, weight, batch.spans), after, block)
