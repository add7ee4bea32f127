"""Dice: a token drawn from one whole row of logits on the host. Neighbours cannot change a draw.

Order: penalties, bias, mask and bans, temperature, top-k, top-p, min-p, then Gumbel-max with noise keyed
(seed, choice, position, token id). Greedy rows stop after the mask and take the largest logit. Ties go to
the lowest id.
"""

import math

import numpy as np
import numpy.typing as npt

from pydflash.errors import EngineError, NonFiniteError
from pydflash.sampling import noise
from pydflash.sampling.ask import Ask
from pydflash.sampling.draw import Draw
from pydflash.sampling.filters import Candidates, best, filter_row, log_total
from pydflash.sampling.mask import bits
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.penalties import apply_bias, apply_penalties, has_penalties

F32 = npt.NDArray[np.float32]


class Dice:
    """Stateless but for a table of counters; safe to share between sequences."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._counter = noise.weyl(vocab_size)

    def draw(self, raw: F32, ask: Ask) -> Draw | EngineError:
        """Draw a token from f32 [V]. A row that cannot be drawn from yields its error instead."""
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
        candidates = None
        if not params.is_greedy:
            candidates = filter_row(row, params)
            likely = self.race(candidates, ask)
        token, candidates = settle(likely, candidates, ask)
        if params.logprobs is None or params.filtered_logprobs:
            return report(token, candidates, params)
        total = log_total(raw.astype(np.float64))
        top = best(raw, min(params.logprobs, self.vocab_size))
        return Draw(
            token=token,
            logprob=float(raw[token]) - total,
            top=tuple((int(t), float(raw[t]) - total) for t in top),
        )

    def race(self, candidates: Candidates, ask: Ask) -> int:
        """The token whose score and noise sum to most."""
        counter = self._counter if candidates.ids is None else self._counter[candidates.ids]
        u = noise.uniforms(counter, noise.key(ask.seed, ask.params.choice, ask.position))
        if candidates.ids is None:
            return noise.race(candidates.scores, u)
        # Candidates stand best first; equal sums are settled by id, so race in id order.
        order = np.argsort(candidates.ids)
        return candidates.token(int(order[noise.race(candidates.scores[order], u[order])]))

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


def settle(token: int, candidates: Candidates | None, ask: Ask) -> tuple[int, Candidates | None]:
    """The token that counts, and the candidates if it is the one drawn; else it is the only one."""
    counts = token if ask.settle is None else ask.settle(token)
    return counts, candidates if counts == token else None


def report(token: int, candidates: Candidates | None, params: SamplingParams) -> Draw:
    """The draw where no log-probability of the model's own is wanted."""
    if params.logprobs is None:
        return Draw(token=token)
    return _filtered(token, candidates, params.logprobs)


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
