"""The goodness-of-fit test has the level and the power that it claims."""

import numpy as np
import pytest
from scipy import stats

from specresearch.certification.goodness_of_fit import (
    Fit,
    chi_square,
    holm,
    samples_needed,
    tv_bounds,
    visible_tv,
)


class TestGoodness:
    def test_chi_square_equals_scipys(self) -> None:
        expected = np.array([0.1, 0.2, 0.3, 0.4]) * 1000
        counts = np.array([90, 230, 290, 390])
        statistic, freedom, p_value = chi_square(counts, expected)
        expected_fit = stats.chisquare(counts, expected)
        assert (statistic, freedom, p_value) == pytest.approx(
            (expected_fit.statistic, 3, expected_fit.pvalue)
        )

    def test_small_cells_are_pooled_until_they_are_large_enough(self) -> None:
        assert chi_square(np.array([1, 50, 49]), np.array([0.5, 50.0, 49.5]))[1] == 1
        assert chi_square(np.array([3, 3, 94]), np.array([3.0, 3.0, 94.0]))[1] == 1
        assert chi_square(np.array([100]), np.array([100.0])) == (0.0, 0, 1.0)

    def test_one_impossible_sample_rejects(self) -> None:
        probs = np.array([0.5, 0.5])
        assert Fit.of(np.array([500, 500]), probs).p_value == 1
        assert Fit.of(np.array([500, 499]), probs, num_impossible=1).p_value == 0

    def test_p_values_are_uniform_and_deviations_of_the_promised_size_are_detected(self) -> None:
        rng = np.random.default_rng(0)
        probs = rng.dirichlet(np.full(30, 0.5))
        num = samples_needed(probs, tv=0.05, alpha=0.01, power=0.9)
        assert visible_tv(num, probs, alpha=0.01, power=0.9) == pytest.approx(0.05, rel=0.03)
        fits = [Fit.of(counts, probs) for counts in rng.multinomial(num, probs, size=400)]
        assert stats.kstest([fit.p_value for fit in fits], "uniform").pvalue > 0.001
        assert all(fit.tv_low == 0 and fit.tv_high > 0 for fit in fits)
        shift = np.where(np.arange(30) % 2, 1, -1) * probs
        shift -= probs * shift.sum()
        moved = probs + shift * 0.05 / (0.5 * np.abs(shift).sum())
        fits = [Fit.of(counts, probs) for counts in rng.multinomial(num, moved, size=400)]
        assert np.mean([fit.p_value < 0.01 for fit in fits]) > 0.87
        assert all(fit.tv_low <= 0.05 <= fit.tv_high for fit in fits)

    def test_deviations_inside_the_pool_are_not_detected(self) -> None:
        """They are among outputs too rare to test one by one; a larger sample tests them."""
        probs = np.array([*[0.9 / 9] * 9, *[0.1 / 400] * 400])
        moved = probs * np.where(np.arange(409) < 9, 1.0, 2.0 * (np.arange(409) % 2))
        few, many = 2_000, 400_000
        assert (
            visible_tv(few, probs, alpha=0.01, power=0.9)
            > 0.1
            > visible_tv(many, probs, alpha=0.01, power=0.9)
        )
        assert 0.5 * np.abs(moved / moved.sum() - probs).sum() == pytest.approx(0.05, abs=0.001)
        rng = np.random.default_rng(1)
        assert Fit.of(rng.multinomial(few, moved / moved.sum()), probs).p_value > 0.01
        assert Fit.of(rng.multinomial(many, moved / moved.sum()), probs).p_value < 1e-9

    def test_rounding_is_tolerated_but_nothing_beyond_it(self) -> None:
        rng = np.random.default_rng(0)
        probs = rng.dirichlet(np.full(30, 5.0))
        shift = np.where(np.arange(30) % 2, 1, -1) * probs
        shift -= probs * shift.sum()
        rounded = probs + 0.045 * shift
        distance = float(((rounded - probs) ** 2 / probs).sum() ** 0.5)
        num = samples_needed(probs, 0.05, alpha=0.01, power=0.9, rounding=distance)
        fits = [
            Fit.of(counts, probs, 0, distance) for counts in rng.multinomial(num, rounded, size=400)
        ]
        assert 0.001 < np.mean([fit.p_value < 0.01 for fit in fits]) < 0.03
        assert (
            np.mean(
                [Fit.of(c, probs).p_value < 0.01 for c in rng.multinomial(num, rounded, size=400)]
            )
            > 0.03
        )
        moved = probs + 0.05 / (0.5 * np.abs(shift).sum()) * shift
        fits = [
            Fit.of(counts, probs, 0, distance) for counts in rng.multinomial(num, moved, size=400)
        ]
        assert np.mean([fit.p_value < 0.01 for fit in fits]) > 0.87
        with pytest.raises(ValueError, match="rounding alone may move the outputs"):
            samples_needed(probs, 0.05, alpha=0.01, power=0.9, rounding=0.2)

    def test_bounds_narrow_with_more_samples(self) -> None:
        (low, high), (lower, higher) = tv_bounds(0.2, 1000, 50), tv_bounds(0.2, 100_000, 50)
        assert low < lower < 0.2 < higher < high

    def test_holm_corrects_for_multiple_tests(self) -> None:
        assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
        assert holm([]) == []
