"""Intervals cover the true value as often as they claim; the bootstrap is the control."""

import numpy as np
import pytest
from scipy import stats

from experiments.intervals.coverage import (
    POPULATIONS,
    bootstrap,
    closed_loop,
    ratio,
)
from specresearch.statistics import (
    LEAST_UNITS,
    SHARE,
    interval_of,
    spread,
)

HARD = ("speedup, lognormal 0.8", "speedup, copied or not")  # too few units show their tail


def at_least(share: float, num_runs: int) -> float:
    """Return the 0.1% quantile of the number of hits at that coverage."""
    return float(stats.binom.ppf(0.001, num_runs, share))


@pytest.mark.parametrize("num", [8, 12, 24, 50])
@pytest.mark.parametrize("name", [name for name in POPULATIONS if name not in HARD])
def test_intervals_of_ratios_and_shares_cover_the_true_value(name: str, num: int) -> None:
    rng, held = np.random.default_rng([1, num]), 0
    for _ in range(1000):
        totals, true, bounds = POPULATIONS[name](rng, num)
        interval = interval_of(totals, ratio, bounds)
        assert interval is not None
        held += interval[0] <= true <= interval[1]
    assert held >= at_least(0.945, 1000)


@pytest.mark.parametrize("name", ["speedup, lognormal 0.45", "acceptance, beta(6, 0.8)"])
def test_negative_control_the_percentile_bootstrap_of_few_units_is_too_narrow(name: str) -> None:
    rng, held = np.random.default_rng(2), 0
    for _ in range(400):
        totals, true, _ = POPULATIONS[name](rng, LEAST_UNITS)
        low, high = bootstrap(totals, ratio, rng)
        held += low <= true <= high
    assert held < at_least(0.945, 400)


@pytest.mark.parametrize(("concurrency", "num"), [(4, 48), (8, 200)])
def test_throughput_intervals_hold_for_overlapping_requests(concurrency: int, num: int) -> None:
    """The control resamples ten stretches of a window, and misses the true ratio too often."""
    rng = np.random.default_rng([4, num])
    intervals = np.array([closed_loop(rng, concurrency, num) for _ in range(250)])
    has_interval = ~np.isnan(intervals[:, 1])
    assert has_interval.mean() > 0.9
    assert intervals[has_interval, 1].sum() >= at_least(0.94, int(has_interval.sum()))
    assert intervals[:, 0].sum() < at_least(0.94, 250)


def test_pairs_stay_together() -> None:
    """Units of very different sizes share a ratio; unpaired columns would widen the interval."""
    sizes = 10.0 ** np.arange(LEAST_UNITS)
    assert interval_of(np.stack([3 * sizes, sizes], 1), ratio) == pytest.approx((3.0, 3.0))


@pytest.mark.parametrize("totals", [np.zeros((0, 2)), np.ones((1, 2)), np.zeros((20, 2))])
def test_no_interval_without_units_to_compare(totals: np.ndarray) -> None:
    assert interval_of(totals, ratio) is None


def test_a_handful_of_units_has_no_interval() -> None:
    totals = np.random.default_rng(0).random((LEAST_UNITS, 2)) + 1
    assert interval_of(totals[:2], ratio) is None
    assert interval_of(totals[:-1], ratio) is None
    assert interval_of(totals, ratio) is not None
    assert interval_of(totals, ratio, slow=1) is None


def test_intervals_exist_at_the_ends_of_the_range() -> None:
    drafted = np.full(LEAST_UNITS, 9.0)
    nothing, everything = (np.stack([share * drafted, drafted], 1) for share in (0.0, 1.0))
    assert interval_of(nothing, ratio, SHARE) == (0.0, 0.0)
    assert interval_of(everything, ratio, SHARE) == (1.0, 1.0)
    nothing[0, 0] = 3.0  # one unit alone accepted anything: without it the share lies on its bound
    interval = interval_of(nothing, ratio, SHARE)
    assert interval is not None
    assert 0 < interval[0] < 3 / 72 < interval[1] < 1
    nothing[1:] = 0.0  # one unit alone has drafts at all
    assert interval_of(nothing, ratio, SHARE) is None


def test_one_unit_does_not_widen_a_share_beyond_what_as_many_coins_allow() -> None:
    """A single unit among eight leaves no degrees of freedom to speak of."""
    drafted = np.full(LEAST_UNITS, 100.0)
    accepted = drafted.copy()
    accepted[0] = 95.0
    interval = interval_of(np.stack([accepted, drafted], 1), ratio, SHARE)
    assert interval is not None
    assert 0.6 < interval[0] < 795 / 800 < interval[1] < 1


def test_unequal_units_have_a_smaller_effective_number() -> None:
    rng = np.random.default_rng(0)
    equal, unequal = np.ones(12), np.array([9.0, 9.0, *[1.0] * 10])
    spreads = [
        spread(np.stack([size * rng.uniform(1, 2, 12), size], 1), ratio)
        for size in (equal, unequal)
    ]
    assert spreads[0] is not None
    assert spreads[1] is not None
    assert spreads[0].freedom > 2 * spreads[1].freedom
