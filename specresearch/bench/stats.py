"""Intervals and spreads. A ratio of totals is resampled from each unit's totals; percentiles need the values themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

NUM_RESAMPLES = 4000
NUM_RANKED_RESAMPLES = 1000  # where each has to be counted through
LEVEL = 0.95
LEAST_UNITS = 8  # that are resampled: fewer say too little of how much they differ

Statistic = Callable[[Float[np.ndarray, "... k"]], Float[np.ndarray, "..."]]


def value_of(statistic: Statistic, totals: Float[np.ndarray, "n k"]) -> float | None:
    """The statistic of the totals; None where it is not defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(totals.sum(0)))
    return value if np.isfinite(value) else None


def ratio_of(part: float | int, whole: float | int) -> float | None:
    return part / whole if whole else None


def bootstrap_interval(
    totals: Float[np.ndarray, "n k"],
    statistic: Statistic,
    seed: int = 0,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval (95%) of `statistic(totals.sum(0))`, units drawn with replacement.

    Columns of a unit stay together, so a ratio of two columns is resampled in pairs. None for fewer than LEAST_UNITS units,
    or when no resample defines the statistic.
    """
    num_units = len(totals)
    if num_units < LEAST_UNITS:
        return None
    rng = np.random.default_rng(seed)
    times_drawn = rng.multinomial(num_units, np.full(num_units, 1 / num_units), size=NUM_RESAMPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(times_drawn @ totals)
    return quantile_interval(values)


def quantile_interval(values: Float[np.ndarray, " r"]) -> tuple[float, float] | None:
    """The middle 95% of resampled values; None when none of them is finite."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def resampled_percentiles(
    values: Float[np.ndarray, " n"],
    owners: Int[np.ndarray, " n"],
    num_owners: int,
    percents: Sequence[int],
    seed: int = 0,
) -> Float[np.ndarray, "r p"]:
    """Percentiles of resamples in which owners are drawn with replacement, each with all of its values; NaN for fewer than
    LEAST_UNITS owners, and of no value.

    Calls with the same seed and number of owners draw the same owners, so that the ratio of their results is paired.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(values)
    ordered, owner = values[order], owners[order]
    shares = np.array(percents) / 100
    found = np.full((NUM_RANKED_RESAMPLES, len(percents)), np.nan)
    for row in found if num_owners >= LEAST_UNITS else ():
        times_drawn = np.bincount(rng.integers(num_owners, size=num_owners), minlength=num_owners)
        reached = times_drawn[owner].cumsum()
        if len(reached) and reached[-1]:
            row[:] = ordered[np.searchsorted(reached, shares * reached[-1])]
    return found


def percentile(values: Sequence[float] | Float[np.ndarray, " n"], percent: int) -> float | None:
    """Linear between neighbours; None of nothing."""
    return float(np.percentile(values, percent)) if len(values) else None


@dataclass(frozen=True)
class Histogram:
    """counts[i]: values in [edges[i], edges[i + 1]), the last bin closed."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    p10: float | None
    p50: float | None
    p90: float | None

    @staticmethod
    def of(values: Sequence[float], low: float = 0.0, high: float = 1.0, num_bins: int = 10) -> "Histogram":
        counts, edges = np.histogram(values, bins=num_bins, range=(low, high))
        return Histogram(
            tuple(round(float(edge), 6) for edge in edges),
            tuple(int(count) for count in counts),
            percentile(values, 10),
            percentile(values, 50),
            percentile(values, 90),
        )
