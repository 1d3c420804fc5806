"""Intervals and spreads: one mechanism, the jackknife with a t quantile, behind every interval that is printed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, log, sqrt

import numpy as np
from jaxtyping import Float, Int
from scipy import stats
from scipy.special import expit

LEVEL = 0.95
LEAST_UNITS = (
    8  # independent units that have an interval: fewer say too little of how much they differ
)
LEAST_PAIRED = 12  # of a ratio of percentiles
LEAST_SLOW = 2  # slow cosines of a series that has one
POSITIVE = (0.0, inf)  # bounds of a ratio
SHARE = (0.0, 1.0)
INTERVALS = (
    f"t interval ({LEVEL:.0%}) of the jackknife (Tukey 1958) on the logarithm of a ratio or the log-odds of a share; degrees of "
    "freedom: Kish's effective number of units less 2, reduced for heavy tails"
)
PERCENTILE_INTERVALS = (
    "Woodruff's interval (1952): order statistics by the binomial distribution, for as many independent values as the "
    "jackknife's error of the share below the percentile stands for; null where too few values lie beyond it; "
    f"their ratios: the jackknife's t interval, from {LEAST_PAIRED} units on"
)
SERIES_INTERVALS = (
    "stretches of time follow one another and are no independent units, so that only the slowest cosines measure their spread "
    "(Lazarus et al. 2018), a degree of freedom each: up to 5, whose half period is at least twice as long as nine of ten "
    f"requests take; null for fewer than {LEAST_SLOW}"
)

Statistic = Callable[[Float[np.ndarray, "... k"]], Float[np.ndarray, "..."]]
Interval = tuple[float, float]


def value_of(statistic: Statistic, totals: Float[np.ndarray, "n k"]) -> float | None:
    """Return the statistic of the totals, or None where it is not defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(totals.sum(0)))
    return value if np.isfinite(value) else None


def ratio_of(part: float | int, whole: float | int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class Spread:
    """The sampling error of a value on the scale on which its bounds lie at infinity.

    freedom: degrees of freedom of `error`. bounds: of the value; (0, inf) is the logarithm, (0, 1) the log-odds.
    """

    value: float
    error: float
    freedom: float
    bounds: Interval = POSITIVE

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the t interval, on the value's own scale."""
        if not self.error:
            return self.value, self.value
        low, high = self.bounds
        middle, reach = (
            _stretched(self.value, self.bounds),
            float(stats.t.ppf((1 + level) / 2, self.freedom)),
        )
        ends = [middle - reach * self.error, middle + reach * self.error]
        if high == inf:
            first, last = low + np.exp(ends)
        else:
            first, last = low + (high - low) * expit(ends)
        return float(first), float(last)


def spread(
    totals: Float[np.ndarray, "n k"],
    statistic: Statistic,
    bounds: Interval = POSITIVE,
    slow: int | None = None,
) -> Spread | None:
    """Return the sampling error of `statistic(totals.sum(0))`, from its values without each of the units.

    Args:
        totals: a row per unit. Columns of a unit stay together, so that a ratio of two columns is one of pairs.
        bounds: of the statistic; a value on one of them, or units that all say the same, have an error of 0.
        slow: None for independent units; for successive stretches of time, how many of their slowest cosines count.

    Returns:
        None for fewer than LEAST_UNITS units or LEAST_SLOW cosines, or where the statistic rests on one unit alone.
    """
    value = value_of(statistic, totals)
    if value is None or _is_too_few(len(totals), slow):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        others = statistic(totals.sum(0) - totals)
    if not np.isfinite(others).all():
        return None
    if np.ptp(others) <= 1e-12 * abs(value) or value in bounds:
        return Spread(value, 0.0, 1.0, bounds)
    with np.errstate(divide="ignore", invalid="ignore"):
        placed = _stretched(others, bounds)
    if not np.isfinite(placed).all():  # without some unit the statistic lies on a bound
        placed = (others - value) * (1 / (value - bounds[0]) + 1 / (bounds[1] - value))
    return Spread(value, *_error(placed, totals, slow), bounds)


def interval_of(
    totals: Float[np.ndarray, "n k"],
    statistic: Statistic,
    bounds: Interval = POSITIVE,
    slow: int | None = None,
) -> Interval | None:
    """Return the 95% interval of `statistic(totals.sum(0))`; arguments and None as in `spread`."""
    found = spread(totals, statistic, bounds, slow)
    return found and found.interval()


def _is_too_few(num_units: int, slow: int | None) -> bool:
    return num_units < LEAST_UNITS or (slow is not None and slow < LEAST_SLOW)


def _stretched(value, bounds: Interval):
    low, high = bounds
    return np.log(value - low) - (0.0 if high == inf else np.log(high - value))


def _error(
    others: Float[np.ndarray, " n"], totals: Float[np.ndarray, "n k"], slow: int | None
) -> tuple[float, float]:
    """Return the jackknife's standard error and its degrees of freedom."""
    influence = _influence(others)
    if slow is not None:
        return _error_of_series(influence, slow)
    num, square = len(influence), (influence**2).mean()
    excess = (influence**4).mean() / square**2 - 3 if square else 0.0
    freedom = max(_effective(totals) - 2, 1.0)
    return sqrt(square / (num - 1)), 1 / (1 / freedom + max(excess, 0.0) / (2 * num))


def _influence(others: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return how much each unit moves the statistic, from its values without each of them."""
    return (len(others) - 1) * (others.mean() - others)


def _effective(totals: Float[np.ndarray, "n k"]) -> float:
    """Return Kish's effective number of units, their shares in the totals averaged over the columns."""
    whole = totals.sum(0)
    shares = (totals[:, whole != 0] / whole[whole != 0]).mean(1)
    return float(1 / (shares**2).sum())


def _error_of_series(influence: Float[np.ndarray, " n"], slow: int) -> tuple[float, float]:
    """Return the standard error of a mean of dependent units, from the power of their slowest cosines."""
    num = len(influence)
    slow = min(slow, num // 2)
    waves = np.cos(np.pi * np.arange(1, slow + 1)[:, None] * (np.arange(num) + 0.5) / num)
    power = 2 / num * (waves @ influence) ** 2
    return sqrt(power.mean() / (num - 1)), float(slow)


@dataclass(frozen=True)
class Percentile:
    """A percentile of values that belong to units, and the error of the share of them that lies below it.

    influence: of every unit on the logarithm of the percentile; zeros where there is no interval.
    """

    value: float
    interval: Interval | None
    influence: Float[np.ndarray, " units"]


def percentile_of(
    values: Float[np.ndarray, " n"],
    units: Int[np.ndarray, " n"],
    num_units: int,
    percent: int,
    slow: int | None = None,
) -> Percentile | None:
    """Return a percentile with Woodruff's interval, by order statistics of the effective number of values.

    units: of every value, numbers below `num_units`; all values of a unit belong together. slow: as in `spread`.
    Returns None of no value.
    """
    if not len(values):
        return None
    share = percent / 100
    value = float(np.percentile(values, percent))
    totals = np.stack(
        [np.bincount(units, values <= value, num_units), np.bincount(units, minlength=num_units)],
        axis=1,
    )
    nothing = Percentile(value, None, np.zeros(num_units))
    if _is_too_few(num_units, slow):
        return nothing
    rest = totals.sum(0) - totals
    if not rest[:, 1].all():
        return nothing
    influence = _influence(rest[:, 0] / rest[:, 1])
    ordered = np.sort(values)
    if slow is None:
        error, freedom = (
            sqrt((influence**2).mean() / (num_units - 1)),
            max(_effective(totals[:, 1:]) - 1, 1.0),
        )
    else:
        error, freedom = _error_of_series(influence, slow)
    ranks = _ranks(share, error, freedom, len(values))
    if ranks is None:
        return nothing
    low, high = float(ordered[ranks[0]]), float(ordered[ranks[1]])
    slope = log(high / low) * len(values) / (ranks[1] + 1 - ranks[0]) if low > 0 else 0.0
    return Percentile(value, (low, high), -slope * influence)


def _ranks(share: float, error: float, freedom: float, num_values: int) -> tuple[int, int] | None:
    """Return between which of the ordered values the percentile lies; None where a bound lies beyond the last of them.

    As many independent values as would have this error (and its degrees of freedom) have order statistics by the binomial
    distribution.
    """
    effective = min(share * (1 - share) / error**2 if error else inf, num_values)
    effective *= (
        stats.t.ppf((1 + LEVEL) / 2, num_values) / stats.t.ppf((1 + LEVEL) / 2, freedom)
    ) ** 2
    num = max(int(effective), 1)
    first, last = stats.binom.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2], num, share)
    if first < 1 or last >= num:
        return None
    scale = num_values / num
    return int((first - 1) * scale), min(ceil((last + 1) * scale), num_values) - 1


def percentile_ratio(
    above: Percentile | None, below: Percentile | None, slow: int | None = None
) -> tuple[float | None, Interval | None]:
    """Return the ratio of two percentiles of the same units with its interval, which both must have."""
    if above is None or below is None or not below.value:
        return None, None
    ratio = above.value / below.value
    num = len(above.influence)
    if above.interval is None or below.interval is None or ratio <= 0 or num < LEAST_PAIRED:
        return ratio, None
    without = (below.influence - above.influence) / (num - 1)
    return ratio, Spread(ratio, *_error(without, np.ones((num, 1)), slow)).interval()


def median_of(values: Sequence[float] | Float[np.ndarray, " n"]) -> Percentile:
    """Return the median of independent values, of which there must be one."""
    data = np.asarray(values, dtype=float)
    found = percentile_of(data, np.arange(len(data)), len(data), 50)
    assert found is not None
    return found


def percentile(values: Sequence[float] | Float[np.ndarray, " n"], percent: int) -> float | None:
    """Return the percentile, linear between neighbours, or None of nothing."""
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
    def of(
        values: Sequence[float], low: float = 0.0, high: float = 1.0, num_bins: int = 10
    ) -> "Histogram":
        counts, edges = np.histogram(values, bins=num_bins, range=(low, high))
        return Histogram(
            tuple(round(float(edge), 6) for edge in edges),
            tuple(int(count) for count in counts),
            percentile(values, 10),
            percentile(values, 50),
            percentile(values, 90),
        )
