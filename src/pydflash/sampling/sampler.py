"""Sampler: rows of logits to tokens, each row alone, so that neighbours cannot change a draw."""

from collections.abc import Sequence

import torch

from pydflash.errors import EngineError
from pydflash.kernels.ops import OpTable
from pydflash.sampling.ask import Ask, Stretch
from pydflash.sampling.device import Best, DeviceRows
from pydflash.sampling.dice import Dice
from pydflash.sampling.draw import Draw
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.penalties import check_bias
from pydflash.sampling.rows import HostRows, Rows


class Sampler:
    """Stateless; safe to share between sequences.

    With `ops`, logits that are not in the host's memory are drawn from where they are.
    """

    def __init__(self, vocab_size: int, ops: OpTable | None = None) -> None:
        self.vocab_size = vocab_size
        self._dice = Dice(vocab_size)
        self._ops = ops

    def check(self, params: SamplingParams) -> None:
        """Raise RequestError when the parameters name tokens this vocabulary lacks. Call once per request."""
        check_bias(params.logit_bias, self.vocab_size)

    def sample(self, logits: torch.Tensor, asks: Sequence[Ask]) -> list[Draw | EngineError]:
        """Draw a token from each row of f32 [M, V]. A row that cannot be drawn yields its error instead."""
        stretches = [Stretch(ask=ask, first=i, depth=(0,)) for i, ask in enumerate(asks)]
        rows = self.rows(logits, stretches)
        if len(rows) != len(asks):
            raise EngineError(f"{len(rows)} rows of logits do not fit {len(asks)} questions")
        return [rows.draw(i, ask) for i, ask in enumerate(asks)]

    def rows(
        self, logits: torch.Tensor, stretches: Sequence[Stretch], best: Best | None = None
    ) -> Rows:
        """Logits f32 [M, V] to draw from; columns beyond the vocabulary are padding, left out.

        `best`: `OpTable.argmax` of them without the padding, if it was made already.
        """
        if logits.shape[1] < self.vocab_size:
            raise EngineError(
                f"logits of {logits.shape[1]} columns do not fit a vocabulary of {self.vocab_size}"
            )
        logits = logits.detach()[:, : self.vocab_size]
        if self._ops is None or logits.device.type == "cpu":
            return HostRows(self._dice, logits)
        return DeviceRows(self._dice, self._ops, logits, stretches, best)
