"""Pairs: medians of paired ratios, pooled acceptance and costs, on timings made up by hand."""

import pytest

from pydflash.bench.pairs import Answered, Pair, TaskFigures
from pydflash.spec.stats import DraftStats


def answered(steps: int, decode_s: float, drafting: DraftStats | None = None) -> Answered:
    return Answered(
        tokens=tuple(range(steps + 1)),
        text="",
        steps=steps,
        prefill_s=0.5,
        decode_s=decode_s,
        drafting=drafting,
    )


def rounds(
    count: int, tokens: int, offered: tuple[int, ...], accepted: tuple[int, ...]
) -> DraftStats:
    return DraftStats(
        rounds=count,
        tokens=tokens,
        offered=list(offered),
        accepted=list(accepted),
        draft_s=count * 0.01,
        step_s=count * 0.03,
    )


def pair(name: str, steps: int, plain_s: float, draft_s: float, peer_s: float) -> Pair:
    drafting = rounds(steps // 2, steps, (steps // 2, steps // 4), (steps // 2, 0))
    return Pair(
        id=name,
        prompt_tokens=9,
        plain=answered(steps, plain_s),
        draft=answered(steps, draft_s, drafting),
        peer=answered(steps, peer_s),
    )


# Speedups 2, 4 and 1: the median, 2, is neither that of the sums (23 / 15) nor that of the median times.
THREE = TaskFigures(
    task="t", pairs=(pair("a", 100, 4, 2, 3), pair("b", 40, 8, 2, 8), pair("c", 20, 11, 11, 22))
)


def test_ratios_are_paired() -> None:
    assert THREE.speedups == [2.0, 4.0, 1.0]
    assert THREE.speedup == 2.0
    assert THREE.over_peer == 2.0  # of 1.5, 4 and 2
    assert THREE.plain_over_peer == 1.0  # of 0.75, 1 and 2
    assert THREE.plain_tok_s == 5.0  # of 25, 5 and 1.8
    assert THREE.draft_tok_s == 20.0  # of 50, 20 and 1.8
    assert THREE.to_json()["speedup_quartiles"] == [1.5, 3.0]


def test_acceptance_is_pooled_and_costs_are_paired() -> None:
    assert THREE.acceptance == 2.0
    assert THREE.by_depth == [1.0, 0.0]
    assert THREE.step_s == pytest.approx(0.2)  # of 0.04, 0.2 and 0.55
    assert THREE.round_s == pytest.approx(0.04)
    assert THREE.round_cost == pytest.approx(0.2)  # of 1, 0.2 and 0.073
    assert THREE.expected == pytest.approx(10.0)  # of 2, 10 and 27.5
    assert THREE.draft_share == pytest.approx(0.1)  # of 0.25, 0.1 and 0.009
    assert THREE.other_share == pytest.approx(0.6)  # of 0, 0.6 and 0.96


def test_expected_is_observed_when_rounds_are_all_there_is() -> None:
    drafting = rounds(50, 200, (50,), (50,))
    only = Pair(
        id="x",
        prompt_tokens=1,
        plain=answered(200, 4.0),
        draft=answered(200, drafting.draft_s + drafting.step_s, drafting),
    )
    figures = TaskFigures(task="t", pairs=(only,))
    assert figures.expected == pytest.approx(figures.speedup)
    assert figures.other_share == pytest.approx(0.0)
    assert figures.to_json()["speedup_quartiles"] is None


def test_rounds_of_different_depth_are_pooled() -> None:
    def one(drafting: DraftStats) -> Pair:
        draft = answered(4, 1.0, drafting)
        return Pair(id="x", prompt_tokens=1, plain=answered(4, 1.0), draft=draft)

    first, second = rounds(4, 9, (4, 4, 2), (3, 2, 0)), rounds(1, 1, (1,), (0,))
    figures = TaskFigures(task="t", pairs=(one(first), one(second)))
    assert figures.acceptance == 2.0
    assert figures.by_depth == [0.6, 0.5, 0.0]
    assert first.rounds == 4, "what was pooled is untouched"


def test_one_token_answers_count_for_exactness_only() -> None:
    short = Pair(id="s", prompt_tokens=1, plain=answered(0, 0.0), draft=answered(0, 0.0))
    figures = TaskFigures(task="t", pairs=(short, *THREE.pairs))
    assert figures.speedup == THREE.speedup
    assert figures.plain_tok_s == THREE.plain_tok_s
    alone = TaskFigures(task="t", pairs=(short,))
    assert (alone.speedup, alone.plain_tok_s, alone.acceptance) == (None, None, None)
    assert (alone.expected, alone.draft_share, alone.by_depth) == (None, None, [])
    assert alone.identical is True


@pytest.mark.parametrize(
    ("drafted", "at"), [((1, 2, 3), None), ((1, 9, 3), 1), ((1, 2), 2), ((1, 2, 3, 4), 3), ((), 0)]
)
def test_a_changed_answer_is_found(drafted: tuple[int, ...], at: int | None) -> None:
    def say(tokens: tuple[int, ...]) -> Answered:
        return Answered(tokens=tokens, text="", steps=2, prefill_s=1, decode_s=1)

    found = Pair(id="x", prompt_tokens=1, plain=say((1, 2, 3)), draft=say(drafted))
    figures = TaskFigures(task="t", pairs=(found,))
    assert found.differs_at == at
    assert figures.identical is (at is None)
    assert found.to_json()["differs_at"] == at


def test_without_drafts_nothing_is_said_of_them() -> None:
    only = Pair(id="x", prompt_tokens=1, plain=answered(10, 2.0))
    told = TaskFigures(task="t", pairs=(only,)).to_json()
    assert told["plain_tok_s"] == 5.0
    for name in ("draft_tok_s", "speedup", "expected_speedup", "acceptance_length", "identical"):
        assert told[name] is None
