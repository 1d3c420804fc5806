"""A figure with its interval, and how one is computed from the totals of its units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from specresearch.statistics import (
    POSITIVE,
    Interval,
    Statistic,
    percentile_of,
    spread,
    value_of,
)


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval.

    Attributes:
        low: Lower end of the interval; None if too little was measured for one.
        high: Upper end.
        freedom: Degrees of freedom of the interval's t quantile; None if unknown.
    """

    value: float
    low: float | None = None
    high: float | None = None
    freedom: float | None = None

    @staticmethod
    def of(
        value: float | None, interval: Sequence[float] | None = None, freedom: float | None = None
    ) -> "Estimate | None":
        """Return the estimate, or None if there is no finite value."""
        if value is None or not np.isfinite(value):
            return None
        low, high = interval or (None, None)
        return Estimate(value, low, high, freedom)

    @staticmethod
    def from_json(data: Mapping[str, Any] | None) -> "Estimate | None":
        """Return an estimate as it was written."""
        return None if data is None else Estimate(**data)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def has_interval(self) -> bool:
        """Return whether enough was measured for an interval."""
        return self.interval is not None

    def is_above(self, limit: float) -> bool:
        """Return whether the whole interval lies above the limit."""
        return self.low is not None and self.low > limit

    def is_below(self, limit: float) -> bool:
        """Return whether the whole interval lies below the limit."""
        return self.high is not None and self.high < limit


def estimate_of(
    totals: Float[np.ndarray, "n k"],
    statistic: Statistic,
    bounds: Interval = POSITIVE,
    slow: int | None = None,
) -> Estimate | None:
    """Return a statistic of the totals with its interval; arguments as in `statistics.spread`."""
    value = value_of(statistic, totals)
    error = spread(totals, statistic, bounds, slow)
    if error is None:
        return Estimate.of(value)
    return Estimate.of(value, error.interval(), error.freedom)


def paired_ratio(
    above: Float[np.ndarray, "n 2"], below: Float[np.ndarray, "n 2"], slow: int | None = None
) -> Estimate | None:
    """Return the ratio of two rates.

    Args:
        above: Amount and per how much, a row per unit.
        below: Likewise, for the same units.
        slow: As in `statistics.spread`.
    """
    totals = np.concatenate([above, below], axis=1).astype(float)
    ratio: Statistic = lambda t: t[..., 0] / t[..., 1] / (t[..., 2] / t[..., 3])  # noqa: E731
    return estimate_of(totals, ratio, POSITIVE, slow)


def percentile_estimate(
    values: Sequence[float], units: Sequence[str], percent: int
) -> Estimate | None:
    """Return a percentile of values; values of one unit depend on one another."""
    names, numbers = np.unique(np.asarray(units), return_inverse=True)
    percentile = percentile_of(np.asarray(values, dtype=float), numbers, len(names), percent)
    return None if percentile is None else Estimate.of(percentile.value, percentile.interval)
