"""Sampler: rows of logits to tokens, each row alone, so that neighbours cannot change a draw.

Order: penalties, bias, mask and bans, temperature, top-k, top-p, min-p, then Gumbel-max with noise keyed
(seed, choice, position, token id). Greedy rows stop after the mask and take the largest logit. Ties go to
the lowest id.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pydflash.errors import EngineError, NonFiniteError
from pydflash.sampling import noise
from pydflash.sampling.draw import Draw
from pydflash.sampling.filters import Candidates, best, filter_row, log_total
from pydflash.sampling.mask import bits
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.penalties import (
    apply_bias,
    apply_penalties,
    check_bias,
    has_penalties,
)

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ask:
    """How one row is drawn.

    `seed` is the resolved one (params.seed may be None), `position` the absolute position of the token
    being drawn, `generated` and `prompt` what came before it. `mask` has a bit for each token, set where
    allowed (sampling/mask.py); `ban` holds single ids that may not be drawn now (end of text before
    min_tokens). `settle` is told the token drawn, once, and says which one counts (mostly the same).
    """

    params: SamplingParams
    seed: int
    position: int
    generated: Sequence[int] = ()
    prompt: Sequence[int] = ()
    mask: bytes | None = None
    ban: frozenset[int] = frozenset()
    settle: Callable[[int], int] | None = None


class Sampler:
    """Stateless but for a table of counters; safe to share between sequences."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._counter = noise.weyl(vocab_size)

    def check(self, params: SamplingParams) -> None:
        """Raise RequestError when the parameters name tokens this vocabulary lacks. Call once per request."""
        check_bias(params.logit_bias, self.vocab_size)

    def sample(self, logits: torch.Tensor, asks: Sequence[Ask]) -> list[Draw | EngineError]:
        """Draw a token from each row of f32 [M, V]. A row that cannot be drawn yields its error instead."""
        rows = self.rows(logits)
        if len(rows) != len(asks):
            raise EngineError(f"{len(rows)} rows of logits do not fit {len(asks)} questions")
        return [self.draw(row, ask) for row, ask in zip(rows, asks, strict=True)]

    def rows(self, logits: torch.Tensor) -> F32:
        """Logits f32 [M, V] on the host, for `draw`; columns beyond the vocabulary are padding, left out."""
        if logits.shape[1] < self.vocab_size:
            raise EngineError(
                f"logits of {logits.shape[1]} columns do not fit a vocabulary of {self.vocab_size}"
            )
        rows: F32 = logits.detach().to("cpu", torch.float32).numpy()
        return rows[:, : self.vocab_size]

    def draw(self, raw: F32, ask: Ask) -> Draw | EngineError:
        """Draw a token from one of `rows`."""
        params = ask.params
        likely = int(raw.argmax())  # NaN counts as largest, so this one number tells of all of them
        if math.isnan(raw[likely]) or raw[likely] == math.inf:
            return NonFiniteError(
                f"the model's logits at position {ask.position} are not finite; the file may be damaged, "
                "or try --ops ref"
            )
        row = self._adjusted(raw, ask)
        if row is not raw:
            likely = int(row.argmax())
        if row[likely] == -math.inf:
            return EngineError(
                f"no token may be drawn at position {ask.position}: mask and bans exclude all of them"
            )
        if not math.isfinite(row[likely]):
            return EngineError(
                f"penalties and bias push logits at position {ask.position} beyond float32; soften them"
            )
        if params.is_greedy:
            return self._settled(raw, likely, None, ask)
        candidates = filter_row(row, params)
        counter = self._counter if candidates.ids is None else self._counter[candidates.ids]
        u = noise.uniforms(counter, noise.key(ask.seed, params.choice, ask.position))
        token = _winner(candidates, u)
        return self._settled(raw, token, candidates, ask)

    def _settled(self, raw: F32, token: int, candidates: Candidates | None, ask: Ask) -> Draw:
        """The draw, or the token that `settle` puts in its place: the one that could be drawn then."""
        counts = token if ask.settle is None else ask.settle(token)
        return self._reported(raw, counts, candidates if counts == token else None, ask.params)

    def _adjusted(self, raw: F32, ask: Ask) -> F32:
        """The row after penalties, bias and masks; the raw one itself when none applies."""
        params = ask.params
        penalised = has_penalties(params)
        if not (penalised or params.logit_bias or ask.ban or ask.mask is not None):
            return raw
        row = raw.copy()
        if penalised:
            apply_penalties(row, params, ask.generated, ask.prompt)
        apply_bias(row, params.logit_bias)
        if ask.mask is not None:
            np.copyto(row, -np.inf, where=~bits(ask.mask, self.vocab_size))
        for token in ask.ban:
            row[token] = -np.inf
        return row

    def _reported(
        self, raw: F32, token: int, candidates: Candidates | None, params: SamplingParams
    ) -> Draw:
        if params.logprobs is None:
            return Draw(token=token)
        if params.filtered_logprobs:
            return _filtered(token, candidates, params.logprobs)
        total = log_total(raw.astype(np.float64))
        top = best(raw, min(params.logprobs, self.vocab_size))
        return Draw(
            token=token,
            logprob=float(raw[token]) - total,
            top=tuple((int(t), float(raw[t]) - total) for t in top),
        )


def _winner(candidates: Candidates, u: noise.F64) -> int:
    if candidates.ids is None:
        return noise.race(candidates.scores, u)
    # Candidates stand best first; equal sums are settled by id, so race in id order.
    order = np.argsort(candidates.ids)
    return candidates.token(int(order[noise.race(candidates.scores[order], u[order])]))


def _filtered(token: int, candidates: Candidates | None, count: int) -> Draw:
    """Log-probabilities among the survivors; a greedy row has one survivor."""
    if candidates is None:
        return Draw(token=token, logprob=0.0, top=((token, 0.0),)[:count])
    scores = candidates.scores
    total = log_total(scores)
    if candidates.ids is None:
        ids = np.arange(len(scores), dtype=np.int64)
        order = np.argsort(-scores, kind="stable")
    else:
        ids, order = candidates.ids, np.arange(len(scores), dtype=np.int64)
    chosen = float(scores[int(np.flatnonzero(ids == token)[0])])
    # A masked token stays in the vocabulary-wide list at probability 0; it is not one of the best.
    top = [(int(ids[i]), float(scores[i]) - total) for i in order[:count] if scores[i] > -np.inf]
    return Draw(token=token, logprob=chosen - total, top=tuple(top))
