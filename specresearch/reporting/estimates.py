"""A figure with its interval, and how a report gets one from rows: resampled over requests, sides in pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from specresearch.bench.stats import Statistic, bootstrap_interval, quantile_interval, resampled_percentiles, value_of

Rates = Sequence[tuple[float, float]] | Float[np.ndarray, "n 2"]


@dataclass(frozen=True)
class Estimate:
    """low, high: its 95% interval; None where too little was measured for one."""

    value: float
    low: float | None = None
    high: float | None = None

    @staticmethod
    def of(value: float | None, interval: Sequence[float] | None = None) -> "Estimate | None":
        """None of a figure that is not there."""
        if value is None or not np.isfinite(value):
            return None
        low, high = interval or (None, None)
        return Estimate(value, low, high)

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def has_interval(self) -> bool:
        return self.interval is not None

    def is_above(self, limit: float) -> bool:
        """With its whole interval."""
        return self.low is not None and self.low > limit

    def is_below(self, limit: float) -> bool:
        return self.high is not None and self.high < limit


def ratio_of(above: Estimate | None, below: Estimate | None) -> Estimate | None:
    """above / below from their separate intervals: wider than a paired comparison would be."""
    if above is None or below is None or not below.value:
        return None
    low = above.low / below.high if above.low is not None and below.high else None
    high = above.high / below.low if above.high is not None and below.low else None
    return Estimate(above.value / below.value, *((low, high) if low is not None and high is not None else (None, None)))


def paired_ratio(above: Rates, below: Rates) -> Estimate | None:
    """The ratio of two rates. Rows: (amount, of how much) of a unit, the same units on both sides, drawn together."""
    totals = np.concatenate([np.reshape(above, (-1, 2)), np.reshape(below, (-1, 2))], axis=1).astype(float)
    ratio: Statistic = lambda t: t[..., 0] / t[..., 1] / (t[..., 2] / t[..., 3])  # noqa: E731
    return Estimate.of(value_of(ratio, totals), bootstrap_interval(totals, ratio))


def percentiles(values: Sequence[float], units: Sequence[str], percents: Sequence[int]) -> dict[int, Estimate]:
    """Percentiles of the values, resampled over units: all values of a unit are drawn together. Empty of nothing."""
    if not len(values):
        return {}
    names, owners = np.unique(np.asarray(units), return_inverse=True)
    data = np.asarray(values, dtype=float)
    points = np.percentile(data, percents)
    if len(names) < 2:
        return {percent: Estimate(float(point)) for percent, point in zip(percents, points, strict=True)}
    drawn = resampled_percentiles(data, owners, len(names), percents)
    return {
        percent: Estimate.of(float(point), quantile_interval(column)) or Estimate(float(point))
        for percent, point, column in zip(percents, points, drawn.T, strict=True)
    }
