"""MarkovHead: DSpark's bias W1[previous] W2 on the logits, and its guess of how far to trust the block.

pair is the corrected logits among the candidates, normalised with the rest of the vocabulary uncorrected
(`heads.normalised`). The confidence of a slot follows the most likely path.
"""

import numpy as np
import torch

from pydflash.draft.base import F32, DraftScores
from pydflash.draft.config import DraftConfig
from pydflash.draft.heads import Candidates, likely_path, normalised, settle
from pydflash.draft.tensors import DraftTensors
from pydflash.kernels.ref.pointwise import rms_norm
from pydflash.kernels.upload import ints, upload

Tensor = torch.Tensor

WIDTH = 32
"""Candidates by the uncorrected logits; the bias rarely lifts a token from farther down."""


class MarkovHead:
    """Two low-rank tables, and with them perhaps a confidence head."""

    name = "dspark"
    width = WIDTH

    def __init__(self, tensors: DraftTensors, config: DraftConfig, norm: Tensor) -> None:
        markov = config.markov
        assert markov is not None
        at = "dflash.dspark."
        self._ops, self._norm, self._eps = tensors.ops, norm, config.eps
        self._first = tensors.weight(at + "markov.w1", cols=markov.rank)
        self._second = tensors.weight(at + "markov.w2", cols=markov.rank)
        self._trust: tuple[Tensor, Tensor] | None = None
        self._trusts_previous = markov.confidence_with_markov
        if markov.confidence:
            size = config.hidden + (markov.rank if self._trusts_previous else 0)
            self._trust = (
                tensors.dense(at + "confidence.weight", 1, size)[0],
                tensors.dense(at + "confidence.bias", 1),
            )

    def scores(self, found: Candidates, top_k: int) -> DraftScores:
        slots, width = found.tokens.shape
        previous = np.full((slots, width), found.anchor, np.int32)
        previous[1:] = found.tokens[:-1]
        device = self._ops.device
        first = self._ops.embed(self._first, upload(previous.reshape(-1), device))
        second = self._ops.embed(self._second, upload(found.ids.astype(np.int32).flatten(), device))
        first = first.view(slots, width, -1)
        bias = (first @ second.view(slots, width, -1).mT).cpu().numpy()
        pair = normalised(found.logits[:, None] + bias, found)
        return settle(found.tokens, pair, top_k, self._confidence(found, first, pair))

    def _confidence(self, found: Candidates, first: Tensor, pair: F32) -> F32 | None:
        if self._trust is None:
            return None
        weight, bias = self._trust
        features = rms_norm(found.hidden, self._norm, self._eps)
        if self._trusts_previous:
            before = ints((0, *likely_path(pair)[:-1]), features.device)
            slots = torch.arange(len(first), device=features.device)
            features = torch.cat((features, first[slots, before]), -1)
        confidence: F32 = ((features * weight).sum(-1) + bias).sigmoid().cpu().numpy()
        return confidence
