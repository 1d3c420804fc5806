"""Intervals of ratios and percentiles: paired where they can be, by unit."""

import numpy as np
import pytest

from specresearch.bench.estimate import Estimate, paired_ratio, percentile_estimate


def width(estimate: Estimate | None) -> float:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


def test_a_paired_ratio_is_narrow_where_units_differ_and_sides_do_not() -> None:
    """A slow spell of the machine hits both sides of a pair; shuffling breaks the pairs."""
    rng = np.random.default_rng(0)
    plain = np.stack([rng.uniform(1, 10, 60), np.ones(60)], axis=1)
    fast = plain * [1.5, 1.0] * rng.normal(1, 0.01, (60, 1)) ** [1, 0]
    paired = paired_ratio(fast, plain)
    assert paired is not None
    assert paired.value == pytest.approx(1.5, rel=0.02)
    assert paired.is_above(1.45)
    assert width(paired_ratio(fast, rng.permutation(plain))) > 5 * width(paired)


def test_percentiles_are_numpys_with_an_interval_by_unit() -> None:
    values = np.random.default_rng(1).normal(10, 1, 400)
    units = [str(i) for i in range(400)]
    for percent in (50, 99):
        estimate = percentile_estimate(values.tolist(), units, percent)
        assert estimate is not None
        assert estimate.value == pytest.approx(np.percentile(values, percent))
    few = np.repeat(values[:20], 20)  # four hundred values of twenty units are worth twenty
    together = percentile_estimate(few.tolist(), [str(i // 20) for i in range(400)], 50)
    assert width(together) > 2.5 * width(percentile_estimate(values.tolist(), units, 50))


def test_nothing_and_one_unit_have_no_interval() -> None:
    assert percentile_estimate([], [], 50) is None
    median = percentile_estimate([1.0, 2.0], ["a", "a"], 50)
    assert median is not None
    assert not median.has_interval
    assert Estimate.of(None) is None
    assert Estimate.of(float("nan")) is None
    assert not Estimate(2.0).is_above(1.0)
