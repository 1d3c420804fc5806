"""Intervals of percentiles cover the true value as often as they claim."""

import numpy as np
import pytest
from scipy import stats

from experiments.intervals.coverage import (
    of_percentile,
    queue,
)
from specresearch.statistics import (
    LEAST_PAIRED,
    Percentile,
    percentile,
    percentile_of,
    percentile_ratio,
)


def at_least(share: float, num_runs: int) -> float:
    """Return the 0.1% quantile of the number of hits at that coverage."""
    return float(stats.binom.ppf(0.001, num_runs, share))


@pytest.mark.parametrize(("percent", "num"), [(50, 8), (50, 50), (90, 50), (99, 500)])
def test_intervals_of_percentiles_cover_the_true_value(percent: int, num: int) -> None:
    rng = np.random.default_rng([3, num])
    for is_ratio in (False, True):
        intervals = np.array(
            [of_percentile(percent, num, rng, is_ratio=is_ratio) for _ in range(200)]
        )
        has_interval = ~np.isnan(intervals[:, 1])
        assert has_interval.all() == (not is_ratio or num >= LEAST_PAIRED)
        assert intervals[has_interval, 1].sum() >= at_least(0.945, int(has_interval.sum()))


def test_a_percentile_that_too_few_values_exceed_has_no_interval() -> None:
    values = np.random.default_rng(0).random(100)
    interval = percentile_of(values, np.arange(100), 100, 99)
    assert interval is not None
    assert interval.interval is None
    assert interval.value == pytest.approx(np.percentile(values, 99))
    assert percentile_of(values[:0], np.arange(0), 0, 50) is None


def test_intervals_hold_for_requests_that_queue_behind_one_another() -> None:
    rng = np.random.default_rng(5)
    intervals = np.array([queue(rng, 0.5, 400, 50, 2 * np.log(2)) for _ in range(200)])
    assert not np.isnan(intervals).any()
    assert intervals[:, 1].sum() >= at_least(0.94, 200)
    assert intervals[:, 0].sum() < at_least(0.8, 200)


def test_a_ratio_of_percentiles_is_paired() -> None:
    rng = np.random.default_rng(0)
    base, units = rng.lognormal(0, 1, 60), np.arange(60)
    plain, fast, other = (
        percentile_of(values, units, 60, 50)
        for values in (base, base / 2, rng.permutation(base) / 2)
    )
    ratios = [percentile_ratio(side, plain) for side in (fast, other)]
    assert ratios[0][0] == ratios[1][0] == pytest.approx(0.5)
    widths = [np.ptp(interval) for _, interval in ratios if interval is not None]
    assert widths[0] < 0.2 * widths[1]
    assert percentile_ratio(fast, Percentile(0.0, None, units.astype(float))) == (None, None)


def test_the_percentile_of_no_values_is_none() -> None:
    assert percentile([], 50) is None
    assert percentile([1.0, 3.0], 50) == 2.0
