"""Do counts come from a known distribution? How sure is the answer, and how many samples does it take?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, stats

MIN_EXPECTED = 5.0
LEVEL = 0.95


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
    def of(counts: Int[np.ndarray, " K"], probs: Float[np.ndarray, " K"], num_impossible: int = 0) -> "Fit":
        """counts: samples in each cell; num_impossible: those in none, i.e. of probability 0."""
        num_samples = int(counts.sum()) + num_impossible
        statistic, freedom, p_value = chi_square(counts, probs * num_samples)
        tv = 0.5 * (float(np.abs(counts / num_samples - probs).sum()) + num_impossible / num_samples)
        low, high = tv_bounds(tv, num_samples, len(counts) + 1)
        p_value = 0.0 if num_impossible else p_value
        return Fit(num_samples, num_impossible, statistic, freedom, p_value, tv, low, high)


def chi_square(counts: Int[np.ndarray, " K"], expected: Float[np.ndarray, " K"]) -> tuple[float, int, float]:
    """Statistic, degrees of freedom and p-value. Cells that expect less than 5 are pooled, with the next until they reach 5."""
    order = np.argsort(expected)
    num_pooled = int((expected < MIN_EXPECTED).sum())
    if num_pooled:
        num_pooled = max(num_pooled, int(np.searchsorted(expected[order].cumsum(), MIN_EXPECTED)) + 1)
    seen, wanted = (np.append(x[order[num_pooled:]], x[order[:num_pooled]].sum()) for x in (counts, expected))
    seen, wanted = (seen, wanted) if num_pooled else (seen[:-1], wanted[:-1])
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    freedom = len(seen) - 1
    return statistic, freedom, float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0


def tv_bounds(tv: float, num_samples: int, num_cells: int, level: float = LEVEL) -> tuple[float, float]:
    """Bounds of the true total variation from that of the empirical distribution of `num_cells` cells.

    The empirical value's mean is at least the true value (Jensen) and exceeds it by at most sqrt((K - 1) / n) / 2
    (Cauchy-Schwarz); one sample moves it by at most 1 / n, so it stays near its mean (McDiarmid 1989). Not asymptotic.
    """
    spread = math.sqrt(math.log(2 / (1 - level)) / (2 * num_samples))
    excess = 0.5 * math.sqrt((num_cells - 1) / num_samples)
    return max(0.0, tv - excess - spread), min(1.0, tv + spread)


def noncentrality(num_cells: int, alpha: float, power: float) -> float:
    """How far from zero chi-square's noncentrality must be for a test at `alpha` to reject with probability `power`."""
    freedom = max(num_cells - 1, 1)
    critical = stats.chi2.isf(alpha, freedom)
    shortfall = optimize.root_scalar(lambda n: stats.ncx2.sf(critical, freedom, n) - power, bracket=(1e-6, 1e5))
    return float(shortfall.root)


def samples_needed(num_cells: int, tv: float, alpha: float, power: float) -> int:
    """Samples that show a deviation of total variation `tv` in whatever cells: its noncentrality is at least n (2 tv)^2."""
    return math.ceil(noncentrality(num_cells, alpha, power) / (2 * tv) ** 2)


def visible_tv(num_samples: int, num_cells: int, alpha: float, power: float) -> float:
    """The smallest total variation that so many samples are sure to show, in whatever cells it lies."""
    return 0.5 * math.sqrt(noncentrality(num_cells, alpha, power) / num_samples)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): rejecting those below alpha is wrong anywhere with probability alpha at most."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = largest
    return adjusted
