"""Confidence intervals of ratios and shares by the jackknife, with a t quantile.

`scipy.stats.bootstrap` is no substitute: with few units its intervals are too narrow. In
simulations of speedups, its 95% BCa intervals held the true value in 87% (8 units) to 92% (50
units) of cases, and these in 94 to 96%, in a sixth of the time or less (experiments/intervals).
These also need no seed, and exist for consecutive stretches of time, which are not independent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import betaincinv, expit, stdtrit

LEVEL = 0.95
LEAST_UNITS = 8  # with fewer independent units their spread is too uncertain for an interval
LEAST_SLOW = 2  # slow cosines that a series needs
POSITIVE = (0.0, inf)  # bounds of a ratio
SHARE = (0.0, 1.0)
INTERVALS = (
    f"t interval ({LEVEL:.0%}) of the jackknife (Tukey 1958) on the logarithm of a ratio or the "
    "log-odds of a share; degrees of freedom: Kish's effective number of units less 2, reduced for "
    "heavy tails; a share's interval is never wider than the exact binomial one (Clopper and "
    "Pearson 1934) of that many units"
)
SERIES_INTERVALS = (
    "consecutive stretches of time are not independent units, so only the slowest cosines measure "
    "their spread (Lazarus et al. 2018), with one degree of freedom each: up to 5, whose half "
    "period is at least twice as long as nine of ten requests take; null for fewer than "
    f"{LEAST_SLOW}"
)

Statistic = Callable[[Float[np.ndarray, "... k"]], Float[np.ndarray, "..."]]
Interval = tuple[float, float]


def value_of(statistic: Statistic, totals: Float[np.ndarray, "n k"]) -> float | None:
    """Return the statistic of the totals, or None if it is undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(totals.sum(0)))
    return value if np.isfinite(value) else None


def ratio_of(part: float | int, whole: float | int) -> float | None:
    """Return part / whole, or None if the whole is 0."""
    return part / whole if whole else None


@dataclass(frozen=True)
class Spread:
    """The sampling error of a value, on the scale that maps its bounds to infinity.

    Attributes:
        freedom: degrees of freedom of `error`.
        bounds: of the value; (0, inf) gives the logarithm, (0, 1) the log-odds.
        units: effective number of independent units; infinite if they are dependent.
    """

    value: float
    error: float
    freedom: float
    bounds: Interval = POSITIVE
    units: float = inf

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the t interval on the value's own scale."""
        if not self.error:
            return self.value, self.value
        low, high = self.bounds
        middle = _unbounded(self.value, self.bounds)
        reach = float(stdtrit(self.freedom, (1 + level) / 2)) * self.error
        ends = np.array([middle - reach, middle + reach])
        if high == inf:
            scaled = np.exp(ends)
        else:
            share = (self.value - low) / (high - low)
            widest = _binomial_interval(share, self.units, level)
            scaled = (high - low) * expit(ends).clip(*widest)
        return float(low + scaled[0]), float(low + scaled[1])


def spread(
    totals: Float[np.ndarray, "n k"],
    statistic: Statistic,
    bounds: Interval = POSITIVE,
    slow: int | None = None,
) -> Spread | None:
    """Return the sampling error of `statistic(totals.sum(0))`, leaving out one unit at a time.

    Args:
        totals: one row per unit. The columns of a unit stay together, so a ratio of two columns
            is a paired comparison.
        bounds: of the statistic. The error is 0 if the value lies on a bound or no unit moves it.
        slow: None for independent units; for consecutive stretches of time, the number of slowest
            cosines that measure their spread.

    Returns:
        None for fewer than LEAST_UNITS units or LEAST_SLOW cosines, or if the statistic is
        undefined without some unit.
    """
    value = value_of(statistic, totals)
    if value is None or is_too_few(len(totals), slow):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        others = statistic(totals.sum(0) - totals)
        if not np.isfinite(others).all():
            return None
        if np.ptp(others) <= 1e-12 * abs(value) or value in bounds:
            return Spread(value, 0.0, 1.0, bounds)
        scaled = _unbounded(others, bounds)
    if not np.isfinite(scaled).all():
        # without some unit the value lies on a bound, so the scale is linearized instead
        scaled = (others - value) * (1 / (value - bounds[0]) + 1 / (bounds[1] - value))
    error, freedom = standard_error(scaled, totals, slow)
    units = effective_units(totals) if slow is None else inf
    return Spread(value, error, freedom, bounds, units)


def interval_of(
    totals: Float[np.ndarray, "n k"],
    statistic: Statistic,
    bounds: Interval = POSITIVE,
    slow: int | None = None,
) -> Interval | None:
    """Return the 95% interval of `statistic(totals.sum(0))`; see `spread`."""
    estimate = spread(totals, statistic, bounds, slow)
    return estimate and estimate.interval()


def is_too_few(num_units: int, slow: int | None) -> bool:
    """Return True if there is too little data for an interval."""
    return num_units < LEAST_UNITS or (slow is not None and slow < LEAST_SLOW)


def _unbounded(value: Any, bounds: Interval) -> Any:
    low, high = bounds
    return np.log(value - low) - (0.0 if high == inf else np.log(high - value))


def _binomial_interval(share: float, num: float, level: float) -> Interval:
    """Return the exact interval of a share of `num` units that each count wholly or not at all.

    No shares of as many units spread more.
    """
    if num == inf:
        return SHARE
    hits, tail = share * num, (1 - level) / 2
    low = float(betaincinv(hits, num - hits + 1, tail))
    return low, float(betaincinv(hits + 1, num - hits, 1 - tail))


def standard_error(
    others: Float[np.ndarray, " n"], totals: Float[np.ndarray, "n k"], slow: int | None
) -> tuple[float, float]:
    """Return the jackknife's standard error and its degrees of freedom.

    Args:
        others: the statistic without each of the units.
    """
    influence = influence_of(others)
    if slow is not None:
        return series_error(influence, slow)
    num, square = len(influence), (influence**2).mean()
    excess = (influence**4).mean() / square**2 - 3 if square else 0.0
    freedom = max(effective_units(totals) - 2, 1.0)
    return sqrt(square / (num - 1)), 1 / (1 / freedom + max(excess, 0.0) / (2 * num))


def influence_of(others: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return how much each unit moves the statistic, given its values without each of them."""
    return (len(others) - 1) * (others.mean() - others)


def effective_units(totals: Float[np.ndarray, "n k"]) -> float:
    """Return Kish's effective number of units, from their average share in the columns."""
    whole = totals.sum(0)
    shares = (totals[:, whole != 0] / whole[whole != 0]).mean(1)
    return float(1 / (shares**2).sum())


def series_error(influence: Float[np.ndarray, " n"], slow: int) -> tuple[float, float]:
    """Return the standard error of a mean of dependent units, and its degrees of freedom.

    It is estimated from the power of the series' `slow` slowest cosines.
    """
    num = len(influence)
    slow = min(slow, num // 2)
    waves = np.cos(np.pi * np.arange(1, slow + 1)[:, None] * (np.arange(num) + 0.5) / num)
    power = 2 / num * (waves @ influence) ** 2
    return sqrt(power.mean() / (num - 1)), float(slow)
