"""SelectorHead: DFlash2's pairwise scores S(a, b) = U(b) + <A[a] * (W h), B[b]>.

pair is log softmax of S over the slot's own candidates (the published proposal: nothing outside them), so
each row sums to one before the cut to what was asked for.
"""

import numpy as np
import torch

from pydflash.draft.base import DraftScores
from pydflash.draft.config import DraftConfig
from pydflash.draft.heads import Candidates, Found, settle, settled
from pydflash.draft.tensors import DraftTensors, Floats
from pydflash.kernels.ops import Guesses, RowKind, Span

Tensor = torch.Tensor


class SelectorHead:
    """Two codebooks and a projection of the hidden state."""

    name = "dflash2"

    def __init__(self, tensors: DraftTensors, config: DraftConfig, norm: Tensor) -> None:
        assert config.selector is not None
        at, rank = "dflash.selector.", config.selector.rank
        self.width = config.selector.top_k
        self._ops, self._norm, self._eps = tensors.ops, norm, config.eps
        self._project = tensors.weight(at + "hproj.weight", cols=config.hidden)
        # A round looks up a few rows of each, which numpy does in no time.
        self._before = tensors.table(at + "pred_cb", cols=rank)
        self._after = tensors.table(at + "succ_cb", cols=rank)
        self._tables = self._on_device(self._before), self._on_device(self._after)

    def _on_device(self, table: Floats) -> Tensor:
        """For the device's own scores, in f16; on the CPU the same memory."""
        device, held = self._ops.device, torch.from_numpy(table)
        return held if device.type == "cpu" else held.to(device, torch.float16)

    def guesses(self, found: Found, top_k: int) -> Guesses:
        rows, width = len(found.anchors), found.tokens.shape[1]
        spans = (Span(0, len(found.tokens), RowKind.EXACT),)
        h = self._ops.norm_linear(found.hidden, self._norm, self._eps, self._project, spans)
        tokens = found.tokens.view(rows, -1, width)
        anchors = found.anchors.view(rows, 1, 1).expand(rows, 1, width)
        before, after = self._tables
        a = before[torch.cat([anchors, tokens[:, :-1]], 1)] * h.view(*tokens.shape[:2], 1, -1)
        pair = a @ after[found.ids].view(a.shape).float().mT
        pair = (pair + found.logits.view(*tokens.shape[:2], 1, width)).log_softmax(-1)
        tokens, logp, pair = settled(tokens, pair, top_k)
        return Guesses(roots=found.anchors, tokens=tokens, logp=logp, pair=pair)

    def scores(self, found: Candidates, top_k: int) -> DraftScores:
        slots, width = found.tokens.shape
        spans = (Span(0, slots, RowKind.EXACT),)
        projected = self._ops.norm_linear(found.hidden, self._norm, self._eps, self._project, spans)
        h = projected.cpu().numpy()
        previous = np.full((slots, width), found.anchor, np.int32)
        previous[1:] = found.tokens[:-1]
        a = self._before[previous] * h[:, None]  # [S, K, rank]
        pair = found.logits[:, None] + a @ self._after[found.ids].astype(np.float32).swapaxes(1, 2)
        pair -= pair.max(-1, keepdims=True)
        pair -= np.log(np.exp(pair).sum(-1, keepdims=True))
        return settle(found.tokens, pair, top_k)
