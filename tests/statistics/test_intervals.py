"""Intervals hold the true value as often as they say: a percentile bootstrap, which does not, is the control."""

import numpy as np
import pytest
from scipy import stats

from experiments.intervals.coverage import (
    POPULATIONS,
    bootstrap,
    closed_loop,
    of_percentile,
    queue,
    ratio,
)
from specresearch.statistics import (
    LEAST_PAIRED,
    LEAST_UNITS,
    SHARE,
    Histogram,
    Percentile,
    interval_of,
    percentile,
    percentile_of,
    percentile_ratio,
    spread,
)

HARD = ("speedup, lognormal 0.8", "speedup, copied or not")  # too few units show their tail


def at_least(share: float, num_runs: int) -> float:
    """The least number of hits that chance leaves to such a share, but once in a thousand times."""
    return float(stats.binom.ppf(0.001, num_runs, share))


@pytest.mark.parametrize("num", [8, 12, 24, 50])
@pytest.mark.parametrize("name", [name for name in POPULATIONS if name not in HARD])
def test_intervals_of_ratios_and_shares_hold_the_true_value(name: str, num: int) -> None:
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


@pytest.mark.parametrize(("percent", "num"), [(50, 8), (50, 50), (90, 50), (99, 500)])
def test_intervals_of_percentiles_hold_the_true_value(percent: int, num: int) -> None:
    rng = np.random.default_rng([3, num])
    for is_ratio in (False, True):
        found = np.array([of_percentile(percent, num, rng, is_ratio=is_ratio) for _ in range(200)])
        known = ~np.isnan(found[:, 1])
        assert known.all() == (not is_ratio or num >= LEAST_PAIRED)
        assert found[known, 1].sum() >= at_least(0.945, int(known.sum()))


def test_a_percentile_that_too_few_values_exceed_has_no_interval() -> None:
    values = np.random.default_rng(0).random(100)
    found = percentile_of(values, np.arange(100), 100, 99)
    assert found is not None
    assert found.interval is None
    assert found.value == pytest.approx(np.percentile(values, 99))
    assert percentile_of(values[:0], np.arange(0), 0, 50) is None


@pytest.mark.parametrize(("concurrency", "num"), [(4, 48), (8, 200)])
def test_throughput_of_requests_that_overlap(concurrency: int, num: int) -> None:
    """Ten stretches of a window are no ten units: resampled as such, they miss the true ratio far too often."""
    rng = np.random.default_rng([4, num])
    found = np.array([closed_loop(rng, concurrency, num) for _ in range(250)])
    known = ~np.isnan(found[:, 1])
    assert known.mean() > 0.9
    assert found[known, 1].sum() >= at_least(0.94, int(known.sum()))
    assert found[:, 0].sum() < at_least(0.94, 250)


def test_latencies_of_requests_that_wait_for_one_another() -> None:
    rng = np.random.default_rng(5)
    found = np.array([queue(rng, 0.5, 400, 50, 2 * np.log(2)) for _ in range(200)])
    assert not np.isnan(found).any()
    assert found[:, 1].sum() >= at_least(0.94, 200)
    assert found[:, 0].sum() < at_least(0.8, 200)


def test_pairs_stay_together() -> None:
    """Units of very different size but one ratio: apart, the columns would give a wide interval."""
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


def test_figures_at_the_end_of_their_range() -> None:
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


def test_units_of_unequal_size_are_fewer_than_they_are() -> None:
    rng = np.random.default_rng(0)
    equal, unequal = np.ones(12), np.array([9.0, 9.0, *[1.0] * 10])
    found = [
        spread(np.stack([size * rng.uniform(1, 2, 12), size], 1), ratio)
        for size in (equal, unequal)
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].freedom > 2 * found[1].freedom


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


def test_histogram_counts_every_value_once_and_closes_the_last_bin() -> None:
    histogram = Histogram.of([0.0, 0.05, 0.5, 0.95, 1.0])
    assert histogram.counts == (2, 0, 0, 0, 0, 1, 0, 0, 0, 2)
    assert histogram.edges[0] == 0
    assert histogram.edges[-1] == 1
    assert histogram.p50 == 0.5


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None
    assert percentile([1.0, 3.0], 50) == 2.0
