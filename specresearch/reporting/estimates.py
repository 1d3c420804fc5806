"""A figure with its interval, how a report gets one from rows, and what several of them say together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log

import numpy as np
from jaxtyping import Float
from scipy import stats

from specresearch.statistics import (
    LEAST_UNITS,
    LEVEL,
    POSITIVE,
    Interval,
    Statistic,
    percentile_of,
    spread,
    value_of,
)

Rates = Sequence[tuple[float, float]] | Float[np.ndarray, "n 2"]
LEAST_FREEDOM = LEAST_UNITS - 2  # of an interval whose degrees of freedom nobody wrote down


@dataclass(frozen=True)
class Estimate:
    """low, high: its 95% interval; None where too little was measured for one. freedom: degrees of freedom of the interval's
    t quantile, None where they are not known."""

    value: float
    low: float | None = None
    high: float | None = None
    freedom: float | None = None

    @staticmethod
    def of(
        value: float | None, interval: Sequence[float] | None = None, freedom: float | None = None
    ) -> "Estimate | None":
        """Return None for a figure that is not there."""
        if value is None or not np.isfinite(value):
            return None
        low, high = interval or (None, None)
        return Estimate(value, low, high, freedom)

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

    def simultaneous(self, num: int) -> "Estimate":
        """Return the estimate of a ratio with an interval that holds together with those of `num` - 1 others (Bonferroni)."""
        if self.low is None or self.high is None or num == 1 or self.low <= 0:
            return self
        freedom = LEAST_FREEDOM if self.freedom is None else self.freedom
        own, wide = stats.t.isf([(1 - LEVEL) / 2, (1 - LEVEL) / 2 / num], freedom)
        low, high = (
            self.value * (bound / self.value) ** float(wide / own)
            for bound in (self.low, self.high)
        )
        return replace(self, low=low, high=high)


def pooled(estimates: Sequence[Estimate], weights: Sequence[int], *, same_units: bool) -> Estimate:
    """Return the weighted geometric mean of estimates of one ratio, with an interval where all of them have one.

    same_units: they rest on the same prompts, so that their errors may be the same and do not average out.
    """
    shares = np.array(weights, dtype=float) / sum(weights)
    if any(estimate.value <= 0 for estimate in estimates):
        return Estimate(float(shares @ [estimate.value for estimate in estimates]))
    value = exp(float(shares @ [log(estimate.value) for estimate in estimates]))
    bounds = [estimate.interval for estimate in estimates]
    known = [bound for bound in bounds if bound is not None and bound[0] > 0]
    if len(known) < len(estimates):
        return Estimate(value)
    add = sum if same_units else lambda reaches: hypot(*reaches)
    down, up = (
        add(
            share * abs(log(own.value / bound[end]))
            for share, own, bound in zip(shares, estimates, known, strict=True)
        )
        for end in (0, 1)
    )
    freedom = [estimate.freedom for estimate in estimates if estimate.freedom is not None]
    least = min(freedom) if len(freedom) == len(estimates) else None
    return Estimate(value, value * exp(-down), value * exp(up), least)


def ratio_of(above: Estimate | None, below: Estimate | None) -> Estimate | None:
    """above / below from their separate intervals: wider than a paired comparison would be."""
    if above is None or below is None or not below.value:
        return None
    low = above.low / below.high if above.low is not None and below.high else None
    high = above.high / below.low if above.high is not None and below.low else None
    return Estimate(
        above.value / below.value,
        *((low, high) if low is not None and high is not None else (None, None)),
    )


def paired_ratio(above: Rates, below: Rates, slow: int | None = None) -> Estimate | None:
    """Return the ratio of two rates. Rows: (amount, of how much) of a unit, the same units on both sides.

    slow: as in `stats.spread`.
    """
    totals = np.concatenate(
        [np.reshape(above, (-1, 2)), np.reshape(below, (-1, 2))], axis=1
    ).astype(float)
    ratio: Statistic = lambda t: t[..., 0] / t[..., 1] / (t[..., 2] / t[..., 3])  # noqa: E731
    return estimate_of(totals, ratio, POSITIVE, slow)


def estimate_of(
    totals: Float[np.ndarray, "n k"],
    statistic: Statistic,
    bounds: Interval = POSITIVE,
    slow: int | None = None,
) -> Estimate | None:
    """Return a statistic of the totals with its interval; arguments as in `stats.spread`."""
    found = spread(totals, statistic, bounds, slow)
    value = value_of(statistic, totals)
    return (
        Estimate.of(value) if found is None else Estimate.of(value, found.interval(), found.freedom)
    )


def percentiles(
    values: Sequence[float], units: Sequence[str], percents: Sequence[int]
) -> dict[int, Estimate]:
    """Return percentiles of the values, all values of a unit belonging together. Empty of nothing."""
    names, owners = np.unique(np.asarray(units), return_inverse=True)
    data = np.asarray(values, dtype=float)
    found = {percent: percentile_of(data, owners, len(names), percent) for percent in percents}
    return {
        percent: Estimate(at.value, *(at.interval or ()))
        for percent, at in found.items()
        if at is not None
    }
