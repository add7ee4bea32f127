"""The law: whole sequences drawn through random trees are distributed as exact enumeration says."""

import itertools
import random

import numpy as np
import pytest
import torch

from pydflash.sampling.ask import Ask
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.sampler import Sampler
from pydflash.spec.proposal import Proposal
from pydflash.spec.verify import verify

V, LENGTH, DRAWS = 4, 3, 6000
CHI_SQUARE = 103.4  # 63 degrees of freedom, one in a thousand above
LOGITS = (
    np.random.default_rng(11).normal(size=(LENGTH, V, V)).astype(np.float32)
)  # [step, before, next]
SAMPLER = Sampler(V)


def law(temperature: float) -> dict[tuple[int, ...], float]:
    """Probability of every sequence that may follow token 0."""
    scaled = np.exp(LOGITS.astype(np.float64) / temperature)
    step = scaled / scaled.sum(-1, keepdims=True)
    out = {}
    for tokens in itertools.product(range(V), repeat=LENGTH):
        before = (0, *tokens[:-1])
        out[tokens] = float(
            np.prod([step[i, b, t] for i, (b, t) in enumerate(zip(before, tokens, strict=True))])
        )
    return out


def random_tree(root: int, deepest: int, dice: random.Random) -> Proposal:
    tokens, parents, depth = [root], [-1], [0]
    for _ in range(dice.randrange(9)):
        parent, token = dice.randrange(len(tokens)), dice.randrange(V)
        taken = any(p == parent and t == token for p, t in zip(parents, tokens, strict=True))
        if depth[parent] < deepest and not taken:
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent] + 1)
    return Proposal(tuple(tokens), tuple(parents), tuple(depth))


def sequence(seed: int, params: SamplingParams) -> tuple[int, ...]:
    """LENGTH tokens, round by round, through trees that know nothing of the law."""
    dice = random.Random(seed)
    said: list[int] = []
    while len(said) < LENGTH:
        at = len(said)
        tree = random_tree(said[-1] if said else 0, LENGTH - at - 1, dice)
        rows = [LOGITS[at + d, t] for t, d in zip(tree.tokens, tree.depth, strict=True)]
        (walk,) = verify(
            SAMPLER,
            torch.from_numpy(np.stack(rows)),
            [tree],
            [0],
            lambda _, drawn, at=at: Ask(params=params, seed=seed, position=at + len(drawn)),  # type: ignore[misc]
            lambda _, drawn, at=at: at + len(drawn) >= LENGTH,  # type: ignore[misc]
        )
        said += [draw.token for draw in walk.draws]
    return tuple(said)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_sequences_follow_the_law(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    counts = dict.fromkeys(law(temperature), 0)
    for seed in range(DRAWS):
        counts[sequence(seed, params)] += 1
    expected = law(temperature)
    assert sum(expected.values()) == pytest.approx(1.0)
    # Rare sequences together, so that every cell expects five draws.
    rare = [t for t in expected if expected[t] * DRAWS < 5]
    cells = [(counts[t], expected[t] * DRAWS) for t in expected if t not in rare]
    if rare:
        cells.append((sum(counts[t] for t in rare), sum(expected[t] for t in rare) * DRAWS))
    statistic = sum((seen - want) ** 2 / want for seen, want in cells)
    assert statistic < CHI_SQUARE
