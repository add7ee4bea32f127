"""Sampler: what is drawn follows the exact filtered distribution, computed here in plain Python."""

import math

import pytest
import torch

from pydflash.sampling.ask import Ask
from pydflash.sampling.draw import Draw
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.sampler import Sampler

V = 60
DRAWS = 6000
CASES = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_k=12),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.2, min_p=0.1),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.5, top_k=30, top_p=0.7, logit_bias={3: 1.0, 9: -1.0}),
]


def exact(row: list[float], params: SamplingParams) -> dict[int, float]:
    """Probabilities after every filter, straight from the definition."""
    biased = [x + params.logit_bias.get(i, 0.0) for i, x in enumerate(row)]
    order = sorted(range(len(row)), key=lambda i: (-biased[i], i))
    if params.top_k:
        order = order[: params.top_k]
    weight = {i: math.exp((biased[i] - biased[order[0]]) / params.temperature) for i in order}
    total = sum(weight.values())
    kept, reached = [], 0.0
    for i in order:
        kept.append(i)
        reached += weight[i]
        if reached >= params.top_p * total:
            break
    kept = [i for i in kept if weight[i] >= params.min_p]
    total = sum(weight[i] for i in kept)
    return {i: weight[i] / total for i in kept}


@pytest.mark.parametrize(
    "params", CASES, ids=lambda p: f"t{p.temperature}k{p.top_k}p{p.top_p}m{p.min_p}"
)
@pytest.mark.parametrize("seed", [1, 2])
def test_sample_follows_distribution(params: SamplingParams, seed: int) -> None:
    row = torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 2
    want = exact(row.tolist(), params)
    asks = [Ask(params=params, seed=seed, position=i) for i in range(DRAWS)]
    counts: dict[int, int] = {}
    for got in Sampler(V).sample(row.expand(DRAWS, V), asks):
        assert isinstance(got, Draw)
        counts[got.token] = counts.get(got.token, 0) + 1
    assert set(counts) <= set(want)
    chi, rest_want, rest_got, cells = 0.0, 0.0, 0, -1
    for token, p in want.items():
        if p * DRAWS < 8:  # too rare for a cell of its own
            rest_want += p * DRAWS
            rest_got += counts.get(token, 0)
        else:
            chi += (counts.get(token, 0) - p * DRAWS) ** 2 / (p * DRAWS)
            cells += 1
    if rest_want > 0:
        chi += (rest_got - rest_want) ** 2 / rest_want
        cells += 1
    # Wilson-Hilferty: chi-square as a normal deviate; 3.3 is one in two thousand.
    spread = 2 / (9 * cells)
    assert ((chi / cells) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < 3.3


def test_joint_draws_are_independent() -> None:
    # Two tokens, alternating positions: pairs must fall evenly into four cells.
    params = SamplingParams(temperature=1.0)
    asks = [Ask(params=params, seed=9, position=i) for i in range(8000)]
    got = [d.token for d in Sampler(2).sample(torch.zeros(8000, 2), asks) if isinstance(d, Draw)]
    cells = [0, 0, 0, 0]
    for first, second in zip(got[::2], got[1::2], strict=True):
        cells[2 * first + second] += 1
    assert sum((c - 1000) ** 2 / 1000 for c in cells) < 16.3  # 3 degrees, one in a thousand
