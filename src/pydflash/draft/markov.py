"""MarkovHead: DSpark's bias W1[previous] W2 on the logits.

pair is the corrected logits among the candidates, normalised with the rest of the vocabulary uncorrected
(`heads.normalised`). A confidence head is kept in files but not run: how far to trust a claim is what
`spec.calibration` learns of every drafter.
"""

import numpy as np

from pydflash.draft.base import DraftScores
from pydflash.draft.config import DraftConfig
from pydflash.draft.heads import Candidates, normalised, settle
from pydflash.draft.tensors import DraftTensors
from pydflash.kernels.upload import upload

WIDTH = 32
"""Candidates by the uncorrected logits; the bias rarely lifts a token from farther down."""


class MarkovHead:
    """Two low-rank tables."""

    name = "dspark"
    width = WIDTH
    guesses = None  # the host does a part of it

    def __init__(self, tensors: DraftTensors, config: DraftConfig) -> None:
        markov = config.markov
        assert markov is not None
        at = "dflash.dspark."
        self._ops = tensors.ops
        self._first = tensors.weight(at + "markov.w1", cols=markov.rank)
        self._second = tensors.weight(at + "markov.w2", cols=markov.rank)

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
        return settle(found.tokens, pair, top_k)
