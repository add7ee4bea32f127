"""Feed-forward halves of a block: a gated layer, or a mixture of experts with an optional shared one.

Each adds to the residual stream what it makes of the stream's norm.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from pydflash.checkpoint.meta import Meta
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels.ops import DenseLayer, Expert, MoeArgs, Span
from pydflash.models.bind import Binder

Tensor = torch.Tensor

_SOFTMAX, _SIGMOID = 1, 2  # {arch}.expert_gating_func


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """The experts a file states. `shared` is the shared expert's size, 0 for none."""

    experts: int
    used: int
    ffn: int
    shared: int
    sigmoid: bool
    normalise: bool
    scale: float

    @classmethod
    def read(cls, meta: Meta) -> "MoeConfig":
        """Read the `{arch}.expert_` keys."""
        gating = meta.int("{arch}.expert_gating_func", default=_SOFTMAX) or _SOFTMAX
        if gating not in (_SOFTMAX, _SIGMOID):
            raise UnsupportedError(
                f"{meta.arch}.expert_gating_func is {gating}; known: 1 (softmax) and 2 (sigmoid)"
            )
        config = cls(
            experts=meta.int("{arch}.expert_count"),
            used=meta.int("{arch}.expert_used_count"),
            ffn=meta.int("{arch}.expert_feed_forward_length"),
            shared=meta.int("{arch}.expert_shared_feed_forward_length", default=0),
            sigmoid=gating == _SIGMOID,
            normalise=meta.bool("{arch}.expert_weights_norm", default=True),
            scale=meta.float("{arch}.expert_weights_scale", default=1.0) or 1.0,
        )
        if not 0 < config.used <= config.experts or config.ffn <= 0:
            raise CheckpointError(
                f"{meta.arch} states {config.used} experts of {config.experts} with "
                f"{config.ffn} features each; the file is inconsistent: download or convert it again"
            )
        return config


class FeedForward(Protocol):
    """The second half of a block."""

    def forward(self, x: Tensor, spans: tuple[Span, ...]) -> Tensor:
        """x f32 [T, E] -> f32 [T, E]; may overwrite x."""


class Dense:
    """norm, merged gate and up, silu, down, residual."""

    def __init__(
        self, bind: Binder, at: str, norm: str, *, hidden: int, ffn: int, eps: float
    ) -> None:
        self.ops = bind.ops
        self.layer = DenseLayer(
            norm=bind.vector(f"{at}{norm}.weight", hidden),
            eps=eps,
            gate_up=bind.weight(
                {at + "ffn_gate.weight": ffn, at + "ffn_up.weight": ffn}, hidden, bias=True
            ),
            down=bind.weight({at + "ffn_down.weight": hidden}, ffn, bias=True),
            act="silu",
        )

    def forward(self, x: Tensor, spans: tuple[Span, ...]) -> Tensor:
        return self.ops.dense_layer(x, self.layer, spans)


class Mixture:
    """norm, router, the chosen experts and the shared one, residual."""

    def __init__(
        self, bind: Binder, at: str, norm: str, *, hidden: int, eps: float, moe: MoeConfig
    ) -> None:
        self.ops = bind.ops
        self.eps = eps
        self.norm = bind.vector(f"{at}{norm}.weight", hidden)
        gate_up = {at + "ffn_gate_exps.weight": moe.ffn, at + "ffn_up_exps.weight": moe.ffn}
        if bind.has(at + "ffn_gate_up_exps.weight"):
            gate_up = {at + "ffn_gate_up_exps.weight": 2 * moe.ffn}
        ups = bind.stack(gate_up, hidden, moe.experts)
        downs = bind.stack({at + "ffn_down_exps.weight": hidden}, moe.ffn, moe.experts)
        gate = at + "ffn_gate_inp_shexp.weight"
        shared = _shared(bind, at, hidden, moe.shared)
        self.args = MoeArgs(
            router=bind.weight({at + "ffn_gate_inp.weight": moe.experts}, hidden),
            experts=tuple(Expert(gate_up=u, down=d) for u, d in zip(ups, downs, strict=True)),
            used=moe.used,
            sigmoid=moe.sigmoid,
            normalise=moe.normalise,
            scale=moe.scale,
            shared=shared,
            shared_gate=bind.vector_or_none(gate, hidden) if shared is not None else None,
        )

    def forward(self, x: Tensor, spans: tuple[Span, ...]) -> Tensor:
        return self.ops.moe(x, self.norm, self.eps, self.args, spans)


def ffn_width(hidden: int, ffn: int, moe: MoeConfig | None) -> int:
    """Floats that a token takes between the norm and the residual, about."""
    if moe is None:
        return 2 * ffn
    pairs = moe.used + (1 if moe.shared else 0)
    return hidden + moe.experts + pairs * (2 * hidden + 3 * max(moe.ffn, moe.shared))


def feed_forward(
    bind: Binder,
    at: str,
    norm: str,
    *,
    hidden: int,
    ffn: int,
    eps: float,
    moe: MoeConfig | None,
) -> FeedForward:
    """The half that a block's tensors (names beginning with `at`) describe; `norm` is before it."""
    if moe is None:
        return Dense(bind, at, norm, hidden=hidden, ffn=ffn, eps=eps)
    return Mixture(bind, at, norm, hidden=hidden, eps=eps, moe=moe)


def _shared(bind: Binder, at: str, hidden: int, ffn: int) -> Expert | None:
    """The shared expert: all of its three matrices, or none."""
    names = [f"{at}ffn_{part}_shexp.weight" for part in ("gate", "up", "down")]
    missing = [name for name in names if not bind.has(name)]
    if len(missing) == len(names):
        return None
    if missing:
        raise CheckpointError(
            f"{bind.checkpoint.path.name} has a shared expert without {missing[0]}; "
            "the file is incomplete: download or convert it again"
        )
    if ffn <= 0:
        raise CheckpointError(
            f"{bind.checkpoint.path.name} has a shared expert but no "
            "expert_shared_feed_forward_length; download or convert it again"
        )
    return Expert(
        gate_up=bind.weight({names[0]: ffn, names[1]: ffn}, hidden),
        down=bind.weight({names[2]: hidden}, ffn),
    )
