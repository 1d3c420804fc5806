"""Test whether counts come from a known distribution, and how many samples that takes.

A target in low precision has no single distribution, since rounding depends on the shape of a
pass. Its counts are tested against the distribution in exact arithmetic. `rounding` is the
deviation that the test allows: the square root of the chi-square divergence, sum((q - p)^2 / p).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, stats

MIN_EXPECTED = 5.0
LEVEL = 0.95
GROWTH = 1.03  # factor by which a sample grows until it is large enough


@dataclass(frozen=True)
class Fit:
    """How well counts fit the expected distribution.

    Attributes:
        num_impossible: samples of outputs whose probability is 0; any makes `p_value` 0.
        statistic, degrees_of_freedom, p_value: of Pearson's chi-square test.
        tv: total variation between the empirical and the expected distribution; chance alone
            makes it positive.
        tv_low, tv_high: 95% bounds of the total variation of the distribution sampled from; they
            hold for any number of samples.
    """

    num_samples: int
    num_impossible: int
    statistic: float
    degrees_of_freedom: int
    p_value: float
    tv: float
    tv_low: float
    tv_high: float

    @staticmethod
    def of(
        counts: Int[np.ndarray, " K"],
        probs: Float[np.ndarray, " K"],
        num_impossible: int = 0,
        rounding: float = 0.0,
    ) -> "Fit":
        """Return the fit of the counts of each cell to the cells' probabilities."""
        num_samples = int(counts.sum()) + num_impossible
        allowed = num_samples * rounding**2
        statistic, freedom, p_value = chi_square(counts, probs * num_samples, allowed)
        deviation = float(np.abs(counts / num_samples - probs).sum())
        tv = 0.5 * (deviation + num_impossible / num_samples)
        tv_low, tv_high = tv_bounds(tv, num_samples, len(counts) + 1)
        return Fit(
            num_samples=num_samples,
            num_impossible=num_impossible,
            statistic=statistic,
            degrees_of_freedom=freedom,
            p_value=0.0 if num_impossible else p_value,
            tv=tv,
            tv_low=tv_low,
            tv_high=tv_high,
        )


def chi_square(
    counts: Int[np.ndarray, " K"], expected: Float[np.ndarray, " K"], allowed: float = 0.0
) -> tuple[float, int, float]:
    """Return Pearson's statistic, its degrees of freedom and the p-value.

    Cells that expect fewer than `MIN_EXPECTED` samples are pooled, together with the next larger
    cells until the pool expects that many.

    Args:
        allowed: noncentrality that the null hypothesis allows; 0 tests for an exact fit.
    """
    order = np.argsort(expected)
    num_pooled = count_pooled(expected)
    pooled, kept = order[:num_pooled], order[num_pooled:]
    observed, wanted = counts[kept], expected[kept]
    if num_pooled:
        observed = np.append(observed, counts[pooled].sum())
        wanted = np.append(wanted, expected[pooled].sum())
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(observed) - 1
    if not freedom:
        return statistic, freedom, 1.0
    return statistic, freedom, float(null_distribution(freedom, allowed).sf(statistic))


def count_pooled(expected: Float[np.ndarray, " K"]) -> int:
    """Return how many cells, from the least expected on, are pooled."""
    num_small = int((expected < MIN_EXPECTED).sum())
    if not num_small:
        return 0
    num_needed = int(np.searchsorted(np.sort(expected).cumsum(), MIN_EXPECTED)) + 1
    return max(num_small, num_needed)


def null_distribution(freedom: int, allowed: float) -> Any:
    """Return the chi-square distribution, noncentral if the null hypothesis allows a deviation."""
    return stats.ncx2(freedom, allowed) if allowed else stats.chi2(freedom)


def tv_bounds(
    tv: float, num_samples: int, num_cells: int, level: float = LEVEL
) -> tuple[float, float]:
    """Return bounds of the true total variation, given that of the empirical distribution.

    The empirical value's mean is at least the true value (Jensen) and exceeds it by at most
    sqrt((K - 1) / n) / 2 (Cauchy-Schwarz). One sample moves it by at most 1 / n, so it stays
    near its mean (McDiarmid 1989). The bounds are not asymptotic.
    """
    spread = math.sqrt(math.log(2 / (1 - level)) / (2 * num_samples))
    excess = 0.5 * math.sqrt((num_cells - 1) / num_samples)
    return max(0.0, tv - excess - spread), min(1.0, tv + spread)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests (Holm 1979).

    Rejecting those below alpha makes any false rejection at all happen with probability alpha at
    most.
    """
    values = np.asarray(p_values, dtype=float)
    order = values.argsort()
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(scaled).clip(max=1.0)
    return adjusted.tolist()


def strictest_level(alpha: float, num_tests: int) -> float:
    """Return the level at which Holm's correction judges the smallest p-value."""
    return alpha / max(num_tests, 1)


@cache
def noncentrality(num_cells: int, alpha: float, power: float, allowed: float = 0.0) -> float:
    """Return the noncentrality that a test at level `alpha` rejects with probability `power`.

    Args:
        allowed: noncentrality that the null hypothesis allows.
    """
    freedom = max(num_cells - 1, 1)
    critical = null_distribution(freedom, allowed).isf(alpha)
    shortfall = optimize.root_scalar(
        lambda n: stats.ncx2.sf(critical, freedom, n) - power, bracket=(1e-6, 1e5)
    )
    return float(shortfall.root)


def visible_tv(
    num_samples: int,
    probs: Float[np.ndarray, " K"],
    alpha: float,
    power: float,
    rounding: float = 0.0,
) -> float:
    """Return the smallest total variation that the test detects, in whatever cells it lies.

    A deviation of total variation t between the tested cells has noncentrality n (2 t)^2 or more.
    A deviation within the pooled cells is invisible, so their probability is added.
    """
    num_pooled = count_pooled(probs * num_samples)
    num_cells = len(probs) - num_pooled + (num_pooled > 0)
    hidden = float(np.sort(probs)[:num_pooled].sum())
    needed = noncentrality(num_cells, alpha, power, num_samples * rounding**2)
    return hidden + 0.5 * math.sqrt(needed / num_samples)


def samples_needed(
    probs: Float[np.ndarray, " K"], tv: float, alpha: float, power: float, rounding: float = 0.0
) -> int:
    """Return how many samples detect a total variation of `tv`, in whatever cells it lies.

    Raises:
        ValueError: rounding alone may cause nearly that deviation.
    """
    if rounding > tv:
        raise ValueError(
            f"rounding alone may move the outputs by {rounding:.2g} (root of the chi-square "
            f"divergence), so a total variation of {tv:g} cannot be told from it; raise "
            "visible_tv or the trial's coarseness"
        )
    num_samples = math.ceil(noncentrality(2, alpha, power) / (2 * tv) ** 2)
    while visible_tv(num_samples, probs, alpha, power, rounding) > tv:
        num_samples = math.ceil(num_samples * GROWTH)
    return num_samples
