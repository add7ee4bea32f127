"""DominoHead: a GRU over the block's tokens so far, whose correction is added to the base logits.

The state depends on the whole path, so there is no pair table: the scores are those of the greedy path, each
slot corrected for its candidates and normalised with the rest uncorrected (`heads.normalised`).
"""

from dataclasses import replace

import numpy as np
import torch

from pydflash.draft.base import DraftScores
from pydflash.draft.config import DraftConfig
from pydflash.draft.heads import Candidates, normalised
from pydflash.draft.tensors import DraftTensors
from pydflash.kernels.ops import RowKind, Span, Weight
from pydflash.kernels.ref.pointwise import rms_norm
from pydflash.kernels.upload import ints, upload

Tensor = torch.Tensor

WIDTH = 32
"""Candidates by the uncorrected logits."""

_ONE = (Span(0, 1, RowKind.EXACT),)


class DominoHead:
    """One GRU step a slot on the target's embedding of the token before; gates in torch's order r, z, n."""

    name = "domino"
    width = WIDTH
    guesses = None  # the host does a part of it

    def __init__(
        self, tensors: DraftTensors, config: DraftConfig, norm: Tensor, token_embd: Weight
    ) -> None:
        c = config.domino
        assert c is not None
        at, hidden = "dflash.domino.", c.hidden
        self._ops, self._norm, self._eps = tensors.ops, norm, config.eps
        self._embd, self._prefix = token_embd, c.prefix
        self._input = tensors.weight(at + "gru.weight_ih", cols=config.hidden)
        self._state = tensors.weight(at + "gru.weight_hh", cols=hidden)
        self._biases = (
            tensors.dense_or_none(at + "gru.bias_ih", 3 * hidden),
            tensors.dense_or_none(at + "gru.bias_hh", 3 * hidden),
        )
        start = tensors.dense_or_none(at + "start", hidden)
        self._start = torch.zeros(hidden, device=tensors.ops.device) if start is None else start
        self._inner = tensors.weight(at + "head.w1", cols=config.hidden + hidden)
        self._inner_bias = tensors.dense_or_none(at + "head.b1", c.embedding)
        self._outer = tensors.weight(at + "head.w2", cols=c.embedding)
        self._outer_bias = tensors.dense_or_none(at + "head.b2", config.draft_vocab or config.vocab)

    def scores(self, found: Candidates, top_k: int) -> DraftScores:
        slots, width = found.tokens.shape
        hidden = rms_norm(found.hidden, self._norm, self._eps)
        ids = upload(found.ids.astype(np.int32), self._ops.device)
        outer = self._ops.embed(self._outer, ids.flatten()).view(slots, width, -1)
        logits = found.logits.copy()
        logp = np.empty_like(logits)
        state, token = self._start[None], found.anchor
        for slot in range(slots):
            state = self._step(state, token)
            if slot >= self._prefix:
                features = torch.cat((hidden[slot : slot + 1], state), -1)
                inner = _plus(self._ops.linear(features, self._inner, _ONE), self._inner_bias)
                bias = outer[slot] @ torch.nn.functional.silu(inner[0])
                if self._outer_bias is not None:
                    bias = bias + self._outer_bias[ids[slot]]
                logits[slot] += bias.cpu().numpy()
            logp[slot] = normalised(logits[None, slot : slot + 1], _slot(found, slot))[0, 0]
            token = int(found.tokens[slot, logp[slot].argmax()])
        order = np.argsort(-logp, axis=1, kind="stable")[:, :top_k]
        return DraftScores(
            tokens=np.take_along_axis(found.tokens, order, 1),
            logp=np.take_along_axis(logp, order, 1),
        )

    def _step(self, state: Tensor, token: int) -> Tensor:
        """One GRU step f32 [1, H] on the embedding of a token."""
        x = self._ops.embed(self._embd, ints((token,), self._ops.device))
        put = _plus(self._ops.linear(x, self._input, _ONE), self._biases[0]).chunk(3, -1)
        kept = _plus(self._ops.linear(state, self._state, _ONE), self._biases[1]).chunk(3, -1)
        reset, update = (put[0] + kept[0]).sigmoid(), (put[1] + kept[1]).sigmoid()
        fresh = (put[2] + reset * kept[2]).tanh()
        return fresh + update * (state - fresh)


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


def _slot(found: Candidates, slot: int) -> Candidates:
    one = slice(slot, slot + 1)
    return replace(found, logits=found.logits[one], total=found.total[one])
