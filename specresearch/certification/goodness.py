"""Do counts come from a known distribution? How sure is the answer, and how many samples does it take?

A target in low precision has no single distribution: the order of its sums, and with it the rounding of its logits, changes with
the shape of a pass. Its counts are held against the distribution in exact arithmetic, and `rounding` bounds how far rounding
alone may take them from it: the root of the chi-square divergence, sum((q - p)^2 / p).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, stats

MIN_EXPECTED = 5.0
LEVEL = 0.95
STEP = 1.03  # by which a sample grows until it is large enough


@dataclass(frozen=True)
class Fit:
    """Counts beside the distribution that they should have.

    statistic, degrees_of_freedom, p_value: Pearson's chi-square; a sample that the distribution excludes makes p_value 0.
    tv: total variation between the empirical distribution and the expected one, which is above 0 by chance alone.
    tv_low, tv_high: bounds (95%, for any number of samples) of the total variation of what was sampled from.
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
        """counts: samples in each cell; num_impossible: those in none, i.e. of probability 0."""
        num_samples = int(counts.sum()) + num_impossible
        statistic, freedom, p_value = chi_square(
            counts, probs * num_samples, num_samples * rounding**2
        )
        tv = 0.5 * (
            float(np.abs(counts / num_samples - probs).sum()) + num_impossible / num_samples
        )
        low, high = tv_bounds(tv, num_samples, len(counts) + 1)
        p_value = 0.0 if num_impossible else p_value
        return Fit(num_samples, num_impossible, statistic, freedom, p_value, tv, low, high)


def chi_square(
    counts: Int[np.ndarray, " K"], expected: Float[np.ndarray, " K"], allowed: float = 0.0
) -> tuple[float, int, float]:
    """Return Pearson's statistic, its degrees of freedom and the p-value.

    Cells that expect fewer than 5 samples are pooled, and the next ones with them until the pool expects 5.

    Args:
        allowed: noncentrality that the hypothesis allows; 0 tests that the counts have exactly this distribution.
    """
    order = np.argsort(expected)
    num_pooled = count_pooled(expected)
    seen, wanted = (
        np.append(x[order[num_pooled:]], x[order[:num_pooled]].sum()) for x in (counts, expected)
    )
    seen, wanted = (seen, wanted) if num_pooled else (seen[:-1], wanted[:-1])
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = len(seen) - 1
    return statistic, freedom, _tail(statistic, freedom, allowed) if freedom else 1.0


def count_pooled(expected: Float[np.ndarray, " K"]) -> int:
    """Return how many of the least expected cells are pooled."""
    num_small = int((expected < MIN_EXPECTED).sum())
    return (
        max(num_small, int(np.searchsorted(np.sort(expected).cumsum(), MIN_EXPECTED)) + 1)
        if num_small
        else 0
    )


def _tail(statistic: float, freedom: int, allowed: float) -> float:
    return float(
        stats.ncx2.sf(statistic, freedom, allowed) if allowed else stats.chi2.sf(statistic, freedom)
    )


def tv_bounds(
    tv: float, num_samples: int, num_cells: int, level: float = LEVEL
) -> tuple[float, float]:
    """Bounds of the true total variation from that of the empirical distribution of `num_cells` cells.

    The empirical value's mean is at least the true value (Jensen) and exceeds it by at most sqrt((K - 1) / n) / 2
    (Cauchy-Schwarz); one sample moves it by at most 1 / n, so it stays near its mean (McDiarmid 1989). Not asymptotic.
    """
    spread = math.sqrt(math.log(2 / (1 - level)) / (2 * num_samples))
    excess = 0.5 * math.sqrt((num_cells - 1) / num_samples)
    return max(0.0, tv - excess - spread), min(1.0, tv + spread)


@cache
def noncentrality(num_cells: int, alpha: float, power: float, allowed: float = 0.0) -> float:
    """Return the noncentrality at which a test of `num_cells` cells at `alpha` rejects with probability `power`.

    allowed: noncentrality that the hypothesis itself allows.
    """
    freedom = max(num_cells - 1, 1)
    critical = (
        stats.ncx2.isf(alpha, freedom, allowed) if allowed else stats.chi2.isf(alpha, freedom)
    )
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
    """Return the smallest total variation that so many samples show with probability `power`, in whatever cells it lies.

    A deviation of total variation t between the cells as they are tested has noncentrality n (2 t)^2 or more. One that lies
    within the pool cannot be seen; it adds at most the probability of the pool.
    """
    num_pooled = count_pooled(probs * num_samples)
    num_cells = len(probs) - num_pooled + (num_pooled > 0)
    hidden = float(np.sort(probs)[:num_pooled].sum())
    shown = noncentrality(num_cells, alpha, power, num_samples * rounding**2)
    return hidden + 0.5 * math.sqrt(shown / num_samples)


def samples_needed(
    probs: Float[np.ndarray, " K"], tv: float, alpha: float, power: float, rounding: float = 0.0
) -> int:
    """Return how many samples show a deviation of total variation `tv`, in whatever cells it lies.

    Raises:
        ValueError: rounding alone may take the outputs nearly that far.
    """
    if rounding > tv:
        raise ValueError(
            f"rounding alone may move the outputs by {rounding:.2g} (root of the chi-square divergence), so a total variation of "
            f"{tv:g} cannot be told from it; raise visible_tv or the trial's coarseness"
        )
    num_samples = math.ceil(noncentrality(2, alpha, power) / (2 * tv) ** 2)
    while visible_tv(num_samples, probs, alpha, power, rounding) > tv:
        num_samples = math.ceil(num_samples * STEP)
    return num_samples


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): rejecting those below alpha is wrong anywhere with probability alpha at most."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted
