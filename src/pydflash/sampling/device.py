"""DeviceRows: draws from logits that stay on a device, the same as those from whole rows on the host.

All rows of a step are looked at together, and one small read brings back the few tokens among which each
draw must fall: the best, or the best with their noise. The host then decides, in the arithmetic of `Dice`.
Where those tokens do not prove the draw, and where a request changes logits or reports them, the row
itself is fetched. So the way taken never shows in the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pydflash.errors import EngineError
from pydflash.kernels.ops import OpTable
from pydflash.kernels.upload import fetch, upload
from pydflash.sampling import noise
from pydflash.sampling.ask import Ask, Stretch
from pydflash.sampling.dice import Dice, report, settle
from pydflash.sampling.draw import Draw
from pydflash.sampling.filters import Candidates, filter_best
from pydflash.sampling.noise import Ids
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.penalties import has_penalties

F32 = npt.NDArray[np.float32]
Best = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # what `OpTable.argmax` gives

RUNNERS = 8  # tokens that noise puts first, to draw from whole vocabularies
NUCLEUS = 128  # best tokens, for filters that do not say how many they keep
SIZES = (RUNNERS, 32, NUCLEUS, 256, 512, 1024)  # of the list; each is a kernel to compile


@dataclass(frozen=True, slots=True)
class _Shortlist:
    """`OpTable.shortlist` on the host, and the noise keys it was made with."""

    values: F32  # [M, K]
    ids: npt.NDArray[np.int32]  # [M, K]
    marks: F32  # [M, K]
    totals: F32  # [M]
    keys: tuple[int, ...]
    inverse: tuple[float, ...]
    noisy: tuple[bool, ...]


class DeviceRows:
    """Rows of one step. `stretches` say beforehand how each will be drawn; a row may turn out otherwise."""

    def __init__(
        self,
        dice: Dice,
        ops: OpTable,
        logits: torch.Tensor,
        stretches: Sequence[Stretch],
        best: Best | None = None,
    ) -> None:
        """logits f32 [M, V] without padding, rows at any distance; `best` of them, if it is known."""
        self._dice = dice
        self._ops = ops
        self._logits = logits
        self._stretches = stretches
        self._list: _Shortlist | None = None
        self._best = best
        self._greedy: list[int | None] | None = None  # of each row; None: the row itself must say
        self._mixed = not all(_is_plain(s.ask) for s in stretches)

    def __len__(self) -> int:
        return self._logits.shape[0]

    def draw(self, row: int, ask: Ask) -> Draw | EngineError:
        """See `Dice.draw`."""
        found: tuple[int, Candidates | None] | None = None
        if not _reshapes(ask.params):
            plain = _is_plain(ask) and not self._mixed
            found = self._from_best(row) if plain else self._from_list(row, ask)
        if found is None:
            return self._dice.draw(self._fetch(row), ask)
        token, candidates = settle(*found, ask)
        return report(token, candidates, ask.params)

    def _fetch(self, row: int) -> F32:
        fetched: F32 = self._logits[row].to("cpu", torch.float32).numpy()
        return fetched

    def _from_best(self, row: int) -> tuple[int, None] | None:
        if self._greedy is None:
            tokens, values, sound = fetch(self._best or self._ops.argmax(self._logits))
            able = sound & (values > -np.inf)
            self._greedy = [t if a else None for t, a in zip(tokens.tolist(), able, strict=True)]
        token = self._greedy[row]
        return None if token is None else (token, None)

    def _from_list(self, row: int, ask: Ask) -> tuple[int, Candidates | None] | None:
        """The draw and what it was drawn from, if the list proves it."""
        listed = self._list or self._make_list()
        self._list = listed
        total = float(listed.totals[row])
        if not np.isfinite(total):
            return None  # the whole row says what is wrong, if anything is
        ids, values, marks = listed.ids[row].astype(np.int64), listed.values[row], listed.marks[row]
        last = float(marks[-1])
        cut = ask.mask is not None or bool(ask.ban)
        if cut:
            allowed = _allowed(ids, ask)
            ids, values = ids[allowed], values[allowed]
        if not len(ids) or values[0] == -np.inf:
            return None
        params = ask.params
        if params.is_greedy:
            return None if listed.noisy[row] else (int(ids[0]), None)
        if len(marks) == self._dice.vocab_size:
            return None  # a vocabulary this small is summed by id, not from the best on
        told = listed.keys[row] == noise.key(ask.seed, params.choice, ask.position)
        told = told and listed.inverse[row] == _inverse(params)
        if not _is_pure(params):
            if listed.noisy[row]:
                return None
            candidates = filter_best(ids, values, params, total if told and not cut else None)
            return None if candidates is None else (self._dice.race(candidates, ask), candidates)
        if not (listed.noisy[row] and told) or params.logprobs is not None:
            return None
        return self._runner(ids, values, last, total, ask)

    def _runner(
        self, ids: Ids, values: F32, last: float, total: float, ask: Ask
    ) -> tuple[int, None] | None:
        """The winner among the tokens that noise puts first, if no other can be above it.

        `last` is the mark of the last of them: all others have less, in f32. A token whose score is far
        below the best has no chance, so what f32 may be wrong by is a share of the scores near the best.
        """
        order = np.argsort(ids)
        scores = values[order].astype(np.float64)
        scores /= ask.params.temperature
        key = noise.key(ask.seed, ask.params.choice, ask.position)
        sums = scores + noise.gumbel(noise.uniforms(noise.counters(ids[order]), key))
        at = int(np.argmax(sums))
        doubt = 1e-4 + 1e-6 * (abs(total) + 128.0)
        return (int(ids[order[at]]), None) if sums[at] > last + doubt else None

    def _make_list(self) -> _Shortlist:
        rows = len(self)
        keys, inverse, noisy = [0] * rows, [1.0] * rows, [False] * rows
        size = RUNNERS
        for stretch in self._stretches:
            ask, params = stretch.ask, stretch.ask.params
            size = max(size, _size(ask))
            for row, depth in enumerate(stretch.depth, stretch.first):
                keys[row] = noise.key(ask.seed, params.choice, ask.position + depth)
                inverse[row] = _inverse(params)
                noisy[row] = _is_pure(params)
        device = self._logits.device
        knobs = np.array([inverse, noisy], np.float32).T.copy()
        signed = np.array(keys, np.uint64).view(np.int64)
        size = next((s for s in SIZES if s >= size), SIZES[-1])
        made = self._ops.shortlist(
            self._logits, size, upload(knobs, device), upload(signed, device)
        )
        values, ids, marks, totals = fetch(made)
        return _Shortlist(values, ids, marks, totals, tuple(keys), tuple(inverse), tuple(noisy))


def _is_plain(ask: Ask) -> bool:
    """Is the largest logit the answer?"""
    return ask.params.is_greedy and ask.mask is None and not ask.ban and not _reshapes(ask.params)


def _is_pure(params: SamplingParams) -> bool:
    """Does temperature alone shape the draw, so that any token may win it?"""
    return not params.is_greedy and not params.top_k and params.top_p >= 1.0 and params.min_p <= 0.0


def _reshapes(params: SamplingParams) -> bool:
    """Are logits changed by more than a mask, or reported?"""
    own = params.logprobs is not None and not params.filtered_logprobs
    return own or bool(params.logit_bias) or has_penalties(params)


def _inverse(params: SamplingParams) -> float:
    return 1.0 if params.is_greedy else min(1.0 / params.temperature, 3e38)


def _size(ask: Ask) -> int:
    """Tokens that mostly settle such a draw."""
    params = ask.params
    if _is_plain(ask) or _is_pure(params):
        return RUNNERS
    spare = len(ask.ban) if ask.mask is None else NUCLEUS
    return (params.top_k if params.top_k > 1 else NUCLEUS) + spare


def _allowed(ids: Ids, ask: Ask) -> npt.NDArray[np.bool_]:
    """Which of these tokens mask and bans let through."""
    kept = np.array([int(t) not in ask.ban for t in ids], dtype=np.bool_)
    if ask.mask is not None:
        mask = np.frombuffer(ask.mask, np.uint8)
        byte = ids >> 3
        inside = byte < len(mask)
        bit = mask[np.where(inside, byte, 0)] >> (ids & 7).astype(np.uint8) & 1 if len(mask) else 0
        kept &= inside & (bit != 0)
    return kept
