import numpy as np
import pytest

from specresearch.bench.stats import LEAST_UNITS, Histogram, bootstrap_interval, percentile


def ratio(totals: np.ndarray) -> np.ndarray:
    return totals[..., 0] / totals[..., 1]


def test_interval_covers_the_true_ratio_about_95_times_in_100() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        denominators = rng.gamma(4.0, 1.0, 40)
        interval = bootstrap_interval(
            np.stack([denominators * rng.normal(2.0, 0.5, 40), denominators], 1), ratio, trial
        )
        assert interval is not None
        covered += interval[0] <= 2.0 <= interval[1]
    assert 176 <= covered <= 198


def test_pairs_stay_together() -> None:
    """Units of very different size but one ratio: resampling the columns apart would give a wide interval."""
    sizes = 10.0 ** np.arange(LEAST_UNITS)
    interval = bootstrap_interval(np.stack([3 * sizes, sizes], 1), ratio)
    assert interval == pytest.approx((3.0, 3.0))


def test_same_seed_same_interval() -> None:
    totals = np.random.default_rng(0).random((12, 2)) + 1
    assert bootstrap_interval(totals, ratio, 7) == bootstrap_interval(totals, ratio, 7)
    assert bootstrap_interval(totals, ratio, 7) != bootstrap_interval(totals, ratio, 8)


@pytest.mark.parametrize("totals", [np.zeros((0, 2)), np.ones((1, 2)), np.zeros((20, 2))])
def test_no_interval_without_spread_to_look_at(totals: np.ndarray) -> None:
    assert bootstrap_interval(totals, ratio) is None


def test_a_handful_of_units_has_no_interval() -> None:
    """Resampled, two that happen to be alike would make one of no width."""
    totals = np.random.default_rng(0).random((LEAST_UNITS, 2)) + 1
    assert bootstrap_interval(totals[:2], ratio) is None
    assert bootstrap_interval(totals[:-1], ratio) is None
    assert bootstrap_interval(totals, ratio) is not None


def test_histogram_counts_every_value_once_and_closes_the_last_bin() -> None:
    histogram = Histogram.of([0.0, 0.05, 0.5, 0.95, 1.0])
    assert histogram.counts == (2, 0, 0, 0, 0, 1, 0, 0, 0, 2)
    assert histogram.edges[0] == 0
    assert histogram.edges[-1] == 1
    assert histogram.p50 == 0.5


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None
    assert percentile([1.0, 3.0], 50) == 2.0
