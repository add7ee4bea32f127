"""Sampler: order of filters, ties, determinism, and errors that stay with their row."""

import math

import numpy as np
import pytest
import torch

from pydflash.errors import EngineError, RequestError
from pydflash.sampling.ask import Ask
from pydflash.sampling.draw import Draw
from pydflash.sampling.params import SamplingParams
from pydflash.sampling.sampler import Sampler

V = 5000  # beyond the size where the race starts to prune
PARAMS = {
    "greedy": SamplingParams(),
    "hot": SamplingParams(temperature=1.3),
    "top_k": SamplingParams(temperature=0.8, top_k=40),
    "top_p": SamplingParams(temperature=0.9, top_p=0.9),
    "min_p": SamplingParams(temperature=1.0, min_p=0.02),
    "all": SamplingParams(
        temperature=0.7,
        top_k=50,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.1,
        logit_bias={7: 2.0},
        logprobs=3,
    ),
}


def logits(rows: int, vocab: int = V, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def draw(sampler: Sampler, row: torch.Tensor, ask: Ask) -> Draw:
    (result,) = sampler.sample(row.reshape(1, -1), [ask])
    assert isinstance(result, Draw)
    return result


@pytest.mark.parametrize("name", PARAMS)
def test_sample_ignores_neighbours_and_order(name: str) -> None:
    sampler = Sampler(V)
    rows = logits(8)
    asks = [
        Ask(
            params=PARAMS[name],
            seed=11 + i,
            position=100 + i,
            generated=[1, 2, 3, 2, i],
            prompt=[9],
        )
        for i in range(8)
    ]
    together = sampler.sample(rows, asks)
    alone = [draw(sampler, rows[i], asks[i]) for i in range(8)]
    backwards = sampler.sample(rows.flip(0), asks[::-1])[::-1]
    assert together == alone == backwards


def test_draw_depends_on_seed_choice_and_position_only() -> None:
    sampler = Sampler(V)
    row = logits(1, scale=0.5)
    params = SamplingParams(temperature=1.0)

    def tokens(seed: int, choice: int, start: int) -> list[int]:
        chosen = SamplingParams(temperature=1.0, choice=choice)
        return [
            draw(sampler, row, Ask(params=chosen, seed=seed, position=start + i)).token
            for i in range(20)
        ]

    base = tokens(5, 0, 0)
    assert tokens(5, 0, 0) == base
    assert tokens(6, 0, 0) != base
    assert tokens(5, 1, 0) != base
    assert tokens(5, 0, 10)[:10] == base[10:]
    assert draw(sampler, row, Ask(params=params, seed=5, position=3)).token == base[3]
    assert draw(sampler, row, Ask(params=params, seed=2**64 - 1, position=2**40)).token < V


def test_greedy_takes_lowest_id_among_equals() -> None:
    row = torch.zeros(50)
    row[[30, 12, 44]] = 4.0
    assert draw(Sampler(50), row, Ask(params=SamplingParams(), seed=0, position=0)).token == 12


def test_top_k_of_one_is_greedy() -> None:
    row = logits(1)
    params = SamplingParams(temperature=2.0, top_k=1)
    got = draw(Sampler(V), row, Ask(params=params, seed=3, position=3))
    assert got.token == int(row.argmax())


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_top_k_cuts_ties_by_id(top_k: int) -> None:
    row = torch.zeros(3000)
    ties = [2900, 15, 700, 1800]
    row[ties] = 6.0
    params = SamplingParams(temperature=1.0, top_k=top_k)
    seen = {
        draw(Sampler(3000), row, Ask(params=params, seed=0, position=i)).token for i in range(200)
    }
    assert seen == set(sorted(ties)[:top_k])


def test_top_p_keeps_token_that_crosses() -> None:
    row = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for top_p, want in ((0.4, {0}), (0.6, {0, 1}), (0.79, {0, 1}), (0.9, {0, 1, 2})):
        params = SamplingParams(temperature=1.0, top_p=top_p)
        seen = {
            draw(Sampler(4), row, Ask(params=params, seed=1, position=i)).token for i in range(300)
        }
        assert seen == want


def test_top_p_grows_past_first_guess() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9)
    row = torch.zeros(3000)  # all alike: the nucleus is the 2,700 lowest ids
    seen = {
        draw(Sampler(3000), row, Ask(params=params, seed=2, position=i)).token for i in range(400)
    }
    assert max(seen) < 2700
    assert max(seen) > 2500


def test_mask_and_ban_exclude() -> None:
    row = torch.tensor([9.0, 8.0, 7.0, 1.0])
    sampler = Sampler(4)
    ask = Ask(params=SamplingParams(), seed=0, position=0, mask=b"\x0e", ban=frozenset({1}))
    assert draw(sampler, row, ask).token == 2
    assert row.tolist() == [9.0, 8.0, 7.0, 1.0]  # the caller's logits stay as they were


def test_bias_moves_choice_and_bad_bias_is_refused() -> None:
    sampler = Sampler(4)
    row = torch.tensor([1.0, 2.0, 3.0, 4.0])
    params = SamplingParams(logit_bias={0: 10.0})
    sampler.check(params)
    assert draw(sampler, row, Ask(params=params, seed=0, position=0)).token == 0
    for bias in ({4: 1.0}, {-1: 1.0}, {0: math.nan}, {0: math.inf}):
        with pytest.raises(RequestError, match="logit_bias") as caught:
            sampler.check(SamplingParams(logit_bias=bias))
        assert caught.value.param == "logit_bias"


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["greedy", "hot", "all"])
def test_non_finite_row_fails_alone(poison: float, name: str) -> None:
    rows = logits(3)
    clean = rows.clone()
    rows[1, 4321] = poison
    asks = [Ask(params=PARAMS[name], seed=1, position=i, ban=frozenset({4321})) for i in range(3)]
    got = Sampler(V).sample(rows, asks)
    want = Sampler(V).sample(clean, asks)
    assert isinstance(got[1], EngineError)
    assert "not finite" in str(got[1])
    assert [got[0], got[2]] == [want[0], want[2]]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, top_k=5)])
def test_nothing_left_is_an_error(params: SamplingParams) -> None:
    sampler = Sampler(8)
    ask = Ask(params=params, seed=0, position=7, mask=b"\0")
    (got,) = sampler.sample(torch.zeros(1, 8), [ask])
    assert isinstance(got, EngineError)
    assert "position 7" in str(got)
    (got,) = sampler.sample(torch.full((1, 8), -math.inf), [Ask(params=params, seed=0, position=7)])
    assert isinstance(got, EngineError)


def test_minus_infinity_is_an_ordinary_never() -> None:
    row = torch.full((6,), -math.inf)
    row[[2, 4]] = torch.tensor([1.0, 1.5])
    params = SamplingParams(temperature=1.0, top_k=4, top_p=0.99, min_p=0.01, logprobs=3)
    seen = {draw(Sampler(6), row, Ask(params=params, seed=0, position=i)).token for i in range(64)}
    assert seen == {2, 4}


def test_penalty_beyond_float32_is_an_error() -> None:
    params = SamplingParams(repetition_penalty=1e-38)
    (got,) = Sampler(3).sample(
        torch.tensor([[100.0, 1.0, 1.0]]),
        [Ask(params=params, seed=0, position=0, generated=[0])],
    )
    assert isinstance(got, EngineError)
    assert "float32" in str(got)


def test_wrong_shape_is_an_error() -> None:
    with pytest.raises(EngineError, match="do not fit"):
        Sampler(9).sample(torch.zeros(1, 8), [Ask(params=SamplingParams(), seed=0, position=0)])


def test_logprobs_are_the_models_own() -> None:
    row = logits(1)[0]
    exact = torch.log_softmax(row.double(), 0)
    for params in (
        SamplingParams(logprobs=4, logit_bias={5: 50.0}),
        SamplingParams(temperature=0.5, top_k=3, logprobs=4),
    ):
        got = draw(Sampler(V), row, Ask(params=params, seed=0, position=0))
        assert got.logprob == pytest.approx(float(exact[got.token]), abs=1e-9)
        top = torch.topk(exact, 4)
        assert [t for t, _ in got.top] == top.indices.tolist()
        assert [p for _, p in got.top] == pytest.approx(top.values.tolist(), abs=1e-9)
    none = draw(Sampler(V), row, Ask(params=SamplingParams(logprobs=0), seed=0, position=0))
    assert none.top == ()
    assert none.logprob is not None


def test_filtered_logprobs_sum_to_one() -> None:
    row = logits(1)[0]
    params = SamplingParams(temperature=0.5, top_k=3, logprobs=5, filtered_logprobs=True)
    got = draw(Sampler(V), row, Ask(params=params, seed=0, position=0))
    assert len(got.top) == 3
    assert sum(math.exp(p) for _, p in got.top) == pytest.approx(1.0)
    assert dict(got.top)[got.token] == got.logprob
    greedy = SamplingParams(logprobs=2, filtered_logprobs=True)
    assert draw(Sampler(V), row, Ask(params=greedy, seed=0, position=0)).logprob == 0.0
    whole = SamplingParams(temperature=1.0, logprobs=V % 97, filtered_logprobs=True)
    got = draw(Sampler(V), row, Ask(params=whole, seed=0, position=0))
    want = torch.topk(torch.log_softmax(row.double(), 0), V % 97)
    assert [p for _, p in got.top] == pytest.approx(want.values.tolist(), abs=1e-9)


def test_pruned_race_equals_full_race() -> None:
    from pydflash.sampling import noise

    rng = np.random.default_rng(0)
    counter = noise.weyl(20000)
    for i, scale in enumerate([0.0, 0.1, 1.0, 3.0, 10.0, 100.0] * 10):
        scores = rng.standard_normal(20000) * scale
        u = noise.uniforms(counter, noise.key(i, 0, i))
        assert noise.race(scores, u) == int(np.argmax(scores + noise.gumbel(u)))


def test_uniforms_are_open_even_and_apart() -> None:
    from pydflash.sampling import noise

    counter = noise.weyl(100_000)
    u = noise.uniforms(counter, noise.key(0, 0, 0))
    assert 0.0 < u.min() < 1e-4
    assert 1.0 - 1e-4 < u.max() < 1.0
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 150  # chi-square, 99 degrees: p about 7e-4
    other = noise.uniforms(counter, noise.key(0, 0, 1))
    assert abs(float(np.corrcoef(u, other)[0, 1])) < 0.01
    assert abs(float(np.corrcoef(u[:-1], u[1:])[0, 1])) < 0.01


@pytest.mark.parametrize("name", PARAMS)
def test_settle_is_told_the_draw_and_its_word_counts(name: str) -> None:
    sampler, row = Sampler(V), logits(1)[0]
    plain = draw(sampler, row, Ask(params=PARAMS[name], seed=1, position=5))
    told: list[int] = []

    def keep(token: int) -> int:
        told.append(token)
        return token

    kept = draw(sampler, row, Ask(params=PARAMS[name], seed=1, position=5, settle=keep))
    assert kept == plain
    assert told == [plain.token]
    least = int(row.argmin())
    forced = draw(
        sampler, row, Ask(params=PARAMS[name], seed=1, position=5, settle=lambda _: least)
    )
    assert forced.token == least
    if plain.logprob is not None:
        assert forced.logprob is not None
        assert forced.logprob < plain.logprob
