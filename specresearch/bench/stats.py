"""Intervals and spreads. Every figure here is a ratio of totals, so resampling needs only each unit's totals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

NUM_RESAMPLES = 4000
LEVEL = 0.95


def bootstrap_interval(
    totals: Float[np.ndarray, "n k"],
    statistic: Callable[[Float[np.ndarray, "... k"]], Float[np.ndarray, "..."]],
    seed: int = 0,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval (95%) of `statistic(totals.sum(0))`, units drawn with replacement.

    Columns of a unit stay together, so a ratio of two columns is resampled in pairs. None for fewer than two units, or
    when no resample defines the statistic.
    """
    num_units = len(totals)
    if num_units < 2:
        return None
    rng = np.random.default_rng(seed)
    times_drawn = rng.multinomial(num_units, np.full(num_units, 1 / num_units), size=NUM_RESAMPLES)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(times_drawn @ totals)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def percentile(values: Sequence[float], percent: int) -> float | None:
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
