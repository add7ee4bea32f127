"""CostModel: curves through noisy points."""

import numpy as np
import pytest

from pydflash.spec.cost import CostModel, Curve

POINTS = {1: 10.0, 2: 11.8, 4: 14.0, 8: 23.0, 16: 42.0}


def measured() -> Curve:
    curve = Curve()
    for n, s in POINTS.items():
        curve.measure(n, s)
    return curve


def test_passes_through_its_points_with_lines_between() -> None:
    curve = measured()
    assert [curve(n) for n in POINTS] == pytest.approx(list(POINTS.values()))
    assert curve(6) == pytest.approx(18.5)
    assert curve(0) == pytest.approx(10.0)
    assert curve(32) == pytest.approx(42 + 16 * 19 / 8)
    assert curve.upto(200)[200] == pytest.approx(curve(200))
    assert Curve()(5) == 0.0


def test_never_falls_whatever_was_seen() -> None:
    dice = np.random.default_rng(0)
    curve = Curve()
    for _ in range(300):
        curve.observe(int(dice.integers(1, 40)), float(dice.lognormal(0, 1)))
    assert (np.diff(curve.upto(90)) >= 0).all()
    assert min(curve.upto(90)) > 0


def test_one_point_does_not_make_rows_free() -> None:
    curve = Curve()
    curve.observe(1, 10.0)
    assert curve(1) == pytest.approx(10.0)
    assert curve(11) > 1.5 * curve(1)


def test_outliers_have_little_influence() -> None:
    curve = measured()
    dice = np.random.default_rng(1)
    for _ in range(400):
        n = int(dice.choice(list(POINTS)))
        slow = 50.0 if dice.random() < 0.05 else 1.0
        curve.observe(n, POINTS[n] * slow * float(np.exp(0.05 * dice.normal())))
    for n, s in POINTS.items():
        assert curve(n) == pytest.approx(s, rel=0.15)


def test_follows_a_machine_that_slows_down_even_where_it_is_not_seen() -> None:
    curve = measured()
    for _ in range(200):
        curve.observe(4, 28.0)
        curve.observe(8, 46.0)
    assert curve(4) == pytest.approx(28.0, rel=0.1)
    assert curve(16) == pytest.approx(84.0, rel=0.3)
    assert curve(1) > 13.0


def test_a_wrong_point_is_corrected() -> None:
    curve = measured()
    for _ in range(300):
        curve.observe(1, 10.0)
        curve.observe(8, 14.5)
        curve.observe(16, 42.0)
    assert curve(8) == pytest.approx(14.5, rel=0.1)
    assert curve(1) == pytest.approx(10.0, rel=0.1)


def test_refuses_no_time_at_all() -> None:
    curve = measured()
    for nonsense in (0.0, -1.0, float("nan")):
        curve.observe(2, nonsense)
    assert curve(2) == pytest.approx(11.8)


def test_context_costs_what_the_profile_says() -> None:
    cost = CostModel()
    cost.profile([(1, 0, 10.0), (1, 1000, 11.0), (4, 0, 14.0), (4, 1000, 18.0), (8, 0, 23.0)])
    assert cost.step_s(1, 0) == pytest.approx(10.0)
    assert cost.step_s(4, 2000) == pytest.approx(22.0)
    assert cost.steps(8, 500)[8] == pytest.approx(cost.step_s(8, 500))
    cost.observe_step(4, 2000, 22.0)
    assert cost.step_s(4, 2000) == pytest.approx(22.0)
    assert cost.step_s(4, 0) == pytest.approx(14.0)


def test_drafts_are_counted_by_their_rows() -> None:
    cost = CostModel()
    assert cost.draft_s(7) == 0.0
    assert cost.drafts(3) == [0.0] * 4
    cost.profile([(1, 0, 10.0)], [(3, 1, 2.0), (3, 4, 4.0)])
    assert cost.draft_s(3) == pytest.approx(2.0)
    assert cost.draft_s(3, 4) == pytest.approx(4.0)
    assert cost.draft_s(15) == pytest.approx(4.0)
    assert cost.draft_s(0) == 0.0
    assert cost.drafts(15)[3] == pytest.approx(2.0)
    for _ in range(200):
        cost.observe_draft(15, 1, 8.0)
    assert cost.draft_s(15) == pytest.approx(8.0, rel=0.05)
