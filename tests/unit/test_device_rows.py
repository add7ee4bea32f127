"""DeviceRows draws what HostRows draws, from the few tokens it looks at, or from the whole row in doubt."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from pydflash.errors import EngineError
from pydflash.kernels.ref.ops import build_ops
from pydflash.sampling.ask import Ask, Stretch
from pydflash.sampling.device import DeviceRows
from pydflash.sampling.dice import Dice
from pydflash.sampling.draw import Draw
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.rows import HostRows

OPS = build_ops(torch.device("cpu"))
V = 3000  # beyond the size where the race starts to prune
DICE = Dice(V)
EVEN = np.packbits(np.arange(V) % 2 == 0, bitorder="little").tobytes()

LISTED = {  # draws that the listed tokens settle, almost always
    "greedy": SamplingParams(),
    "greedy filtered": SamplingParams(logprobs=2, filtered_logprobs=True),
    "one": SamplingParams(temperature=0.7, top_k=1),
    "hot": SamplingParams(temperature=1.3),
    "cold": SamplingParams(temperature=0.02, choice=3),
    "top_k": SamplingParams(temperature=0.8, top_k=40, logprobs=4, filtered_logprobs=True),
    "many": SamplingParams(temperature=0.8, top_k=200),
    "top_p": SamplingParams(temperature=0.6, top_p=0.9, logprobs=4, filtered_logprobs=True),
    "min_p": SamplingParams(temperature=1.0, min_p=0.02, logprobs=4, filtered_logprobs=True),
    "three": SamplingParams(temperature=0.7, top_k=50, top_p=0.95, min_p=0.05),
    "two": SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05),
}
FETCHED = {
    "logprobs": SamplingParams(temperature=0.7, top_k=9, logprobs=3),
    "penalties": SamplingParams(repetition_penalty=1.3),
    "bias": SamplingParams(temperature=0.9, top_p=0.9, logit_bias={5: 3.0}),
    "hot filtered": SamplingParams(temperature=1.0, logprobs=2, filtered_logprobs=True),
    "huge": SamplingParams(temperature=0.9, top_k=2000),
}


class Counted(DeviceRows):
    fetches = 0

    def _fetch(self, row: int) -> np.ndarray:
        self.fetches += 1
        return super()._fetch(row)


def device(logits: torch.Tensor, asks: Sequence[Ask], dice: Dice = DICE) -> Counted:
    return Counted(
        dice, OPS, logits, [Stretch(ask=a, first=i, depth=(0,)) for i, a in enumerate(asks)]
    )


def same(got: Draw | EngineError, want: Draw | EngineError) -> bool:
    if isinstance(want, EngineError):
        return isinstance(got, EngineError) and str(got) == str(want)
    return got == want


def random_logits(rows: int, vocab: int = V) -> torch.Tensor:
    """Rows peaked and flat, with ties, signed zeros and tokens that are never drawn."""
    out = torch.randn(rows, vocab) * torch.tensor([0.3, 2.0, 4.0, 9.0]).repeat(rows)[:rows, None]
    out[::3] = out[::3].round()
    out[::3][:, ::7] *= -0.0
    out[1::5, torch.randperm(vocab)[: vocab // 2]] = -math.inf
    return out


@pytest.mark.parametrize("name", [*LISTED, *FETCHED])
def test_same_draws_as_from_whole_rows(name: str) -> None:
    params = (LISTED | FETCHED)[name]
    fetches = 0
    for turn in range(8):
        logits = random_logits(32)
        asks = [
            Ask(params=params, seed=turn, position=40 + i, generated=[1, 2, i]) for i in range(32)
        ]
        rows, host = device(logits, asks), HostRows(DICE, logits)
        for i, ask in enumerate(asks):
            assert rows.draw(i, ask) == host.draw(i, ask)
        fetches += rows.fetches
    share = fetches / 256
    # Flat rows have wide nuclei and low floors; the rest is to be settled by the list.
    assert share < 0.6 if name in LISTED else share == 1.0
    if name in ("greedy", "one", "hot", "cold", "top_k", "many", "three"):
        assert share < 0.02


def test_rows_of_many_requests_at_once() -> None:
    for turn in range(12):
        logits = random_logits(48)
        names = [*LISTED, *FETCHED]
        asks = [
            Ask(
                params=(LISTED | FETCHED)[names[(turn + i) % len(names)]],
                seed=i,
                position=i,
                mask=EVEN if i % 5 == 0 else None,
                ban=frozenset({int(logits[i].argmax())}) if i % 4 == 0 else frozenset(),
            )
            for i in range(48)
        ]
        rows, host = device(logits, asks), HostRows(DICE, logits)
        for i in torch.randperm(48).tolist():
            assert rows.draw(i, asks[i]) == host.draw(i, asks[i])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("name", LISTED)
def test_a_row_that_is_not_finite_fails_alone(poison: float, name: str) -> None:
    logits = random_logits(4)
    logits[1, 2999] = poison
    logits[2] = -math.inf
    asks = [Ask(params=LISTED[name], seed=1, position=i) for i in range(4)]
    rows, host = device(logits, asks), HostRows(DICE, logits)
    draws = [rows.draw(i, ask) for i, ask in enumerate(asks)]
    assert all(
        same(got, host.draw(i, ask)) for i, (got, ask) in enumerate(zip(draws, asks, strict=True))
    )
    assert [isinstance(d, EngineError) for d in draws] == [False, True, True, False]


@pytest.mark.parametrize("vocab", [1, 5, 70])
@pytest.mark.parametrize("name", LISTED)
def test_small_vocabularies(vocab: int, name: str) -> None:
    dice, logits = Dice(vocab), random_logits(16, vocab)
    asks = [Ask(params=LISTED[name], seed=3, position=i) for i in range(16)]
    rows, host = device(logits, asks, dice), HostRows(dice, logits)
    for i, ask in enumerate(asks):
        assert same(rows.draw(i, ask), host.draw(i, ask))


def test_a_row_drawn_otherwise_than_told_is_drawn_right() -> None:
    logits = random_logits(8)
    told = [Ask(params=LISTED["hot"], seed=1, position=i) for i in range(8)]
    rows, host = device(logits, told), HostRows(DICE, logits)
    for name, params in LISTED.items():
        for i in range(8):
            ask = Ask(params=params, seed=2, position=i, mask=EVEN if i % 2 else None)
            assert rows.draw(i, ask) == host.draw(i, ask), name


def test_positions_follow_the_depth() -> None:
    logits = random_logits(6)
    ask = Ask(params=LISTED["hot"], seed=5, position=70)
    rows = Counted(DICE, OPS, logits, [Stretch(ask=ask, first=0, depth=(0, 1, 1, 2, 2, 3))])
    host = HostRows(DICE, logits)
    for i, depth in enumerate((0, 1, 1, 2, 2, 3)):
        deeper = replace(ask, position=70 + depth)
        assert rows.draw(i, deeper) == host.draw(i, deeper)
    assert rows.fetches == 0


def test_settle_has_the_last_word() -> None:
    logits = random_logits(5)
    for params in LISTED.values():
        asks = [Ask(params=params, seed=1, position=i, settle=lambda t: t // 2) for i in range(5)]
        rows, host = device(logits, asks), HostRows(DICE, logits)
        for i, ask in enumerate(asks):
            assert rows.draw(i, ask) == host.draw(i, ask)


def test_padding_is_left_where_it_is() -> None:
    wide = torch.full((3, V + 9), math.nan)
    wide[:, :V] = random_logits(3)
    asks = [Ask(params=LISTED["top_p"], seed=1, position=i) for i in range(3)]
    rows, host = device(wide[:, :V], asks), HostRows(DICE, wide[:, :V])
    assert [rows.draw(i, a) for i, a in enumerate(asks)] == [
        host.draw(i, a) for i, a in enumerate(asks)
    ]
