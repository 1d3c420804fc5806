"""Intervals of ratios and percentiles: paired where they can be, by unit."""

import numpy as np
import pytest

from specresearch.reporting.estimates import Estimate, paired_ratio, percentiles, ratio_of


def width(estimate: Estimate | None) -> float:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


def test_a_paired_ratio_is_narrow_where_units_differ_and_sides_do_not() -> None:
    """A machine that is twice as slow for a while is so for both sides; shuffled, the pairs are lost."""
    rng = np.random.default_rng(0)
    plain = np.stack([rng.uniform(1, 10, 60), np.ones(60)], axis=1)
    fast = plain * [1.5, 1.0] * rng.normal(1, 0.01, (60, 1)) ** [1, 0]
    paired = paired_ratio(fast, plain)
    assert paired is not None
    assert paired.value == pytest.approx(1.5, rel=0.02)
    assert paired.is_above(1.45)
    assert width(paired_ratio(fast, rng.permutation(plain))) > 5 * width(paired)


def test_separate_intervals_give_a_wider_ratio_that_holds_the_extremes() -> None:
    ratio = ratio_of(Estimate(3.0, 2.7, 3.3), Estimate(2.0, 1.8, 2.2))
    assert ratio is not None
    assert (ratio.low, ratio.high) == (pytest.approx(2.7 / 2.2), pytest.approx(3.3 / 1.8))
    bare = ratio_of(Estimate(3.0), Estimate(2.0, 1.8, 2.2))
    assert bare is not None
    assert not bare.has_interval
    assert ratio_of(None, Estimate(2.0)) is None


def test_percentiles_are_numpys_with_an_interval_by_unit() -> None:
    values = np.random.default_rng(1).normal(10, 1, 400)
    alone = percentiles(values.tolist(), [str(i) for i in range(400)], (50, 99))
    assert alone[50].value == pytest.approx(np.percentile(values, 50))
    assert alone[99].value == pytest.approx(np.percentile(values, 99))
    few = np.repeat(values[:20], 20)  # four hundred values of twenty units are worth twenty
    together = percentiles(few.tolist(), [str(i // 20) for i in range(400)], (50,))
    assert width(together[50]) > 2.5 * width(alone[50])


def test_nothing_and_one_unit_have_no_interval() -> None:
    assert percentiles([], [], (50,)) == {}
    assert not percentiles([1.0, 2.0], ["a", "a"], (50,))[50].has_interval
    assert Estimate.of(None) is None
    assert Estimate.of(float("nan")) is None
    assert not Estimate(2.0).is_above(1.0)
