"""Percentiles of values that belong to units, with Woodruff's intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log, sqrt

import numpy as np
from jaxtyping import Float, Int
from scipy.special import bdtr, bdtrik, stdtrit

from specresearch.statistics.jackknife import (
    LEVEL,
    Interval,
    Spread,
    effective_units,
    influence_of,
    is_too_few,
    series_error,
    standard_error,
)

LEAST_PAIRED = 12  # units that a ratio of percentiles needs
PERCENTILE_INTERVALS = (
    "Woodruff's interval (1952): order statistics by the binomial distribution, for as many "
    "independent values as the jackknife's error of the share below the percentile stands for; "
    "null where too few values lie beyond it; their ratios: the jackknife's t interval, from "
    f"{LEAST_PAIRED} units on"
)


@dataclass(frozen=True)
class Percentile:
    """A percentile of values that belong to units.

    Attributes:
        influence: of every unit on the logarithm of the percentile; zeros without an interval.
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
    """Return a percentile with Woodruff's interval, or None if there are no values.

    Args:
        units: the unit of each value, from 0 to num_units - 1; its values are dependent.
        slow: as in `spread`.
    """
    if not len(values):
        return None
    value = float(np.percentile(values, percent))
    below = np.bincount(units, values <= value, num_units)
    totals = np.stack([below, np.bincount(units, minlength=num_units)], axis=1)
    without_interval = Percentile(value, None, np.zeros(num_units))
    others = totals.sum(0) - totals
    if is_too_few(num_units, slow) or not others[:, 1].all():
        return without_interval
    influence = influence_of(others[:, 0] / others[:, 1])
    if slow is None:
        error = sqrt((influence**2).mean() / (num_units - 1))
        freedom = max(effective_units(totals[:, 1:]) - 1, 1.0)
    else:
        error, freedom = series_error(influence, slow)
    ranks = _ranks(percent / 100, error, freedom, len(values))
    if ranks is None:
        return without_interval
    first, last = ranks
    ordered = np.sort(values)
    low, high = float(ordered[first]), float(ordered[last])
    slope = log(high / low) * len(values) / (last + 1 - first) if low > 0 else 0.0
    return Percentile(value, (low, high), -slope * influence)


def _ranks(share: float, error: float, freedom: float, num_values: int) -> tuple[int, int] | None:
    """Return the indices of the sorted values that bound the percentile.

    The effective number of values is that of independent values with the same error and degrees
    of freedom. Their order statistics follow the binomial distribution.

    Returns:
        None if a bound lies beyond the last value.
    """
    quantiles = np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    effective = min(share * (1 - share) / error**2 if error else inf, num_values)
    ratio = stdtrit(num_values, quantiles[1]) / stdtrit(freedom, quantiles[1])
    num = max(int(effective * ratio**2), 1)
    first, last = _binomial_quantiles(quantiles, num, share)
    if first < 1 or last >= num:
        return None
    scale = num_values / num
    return int((first - 1) * scale), min(ceil((last + 1) * scale), num_values) - 1


def _binomial_quantiles(
    levels: Float[np.ndarray, " n"], num: int, share: float
) -> Float[np.ndarray, " n"]:
    """Return what `scipy.stats.binom.ppf` does, without the time that its import takes."""
    above = np.ceil(np.nan_to_num(bdtrik(levels, num, share)))
    below = np.maximum(above - 1, 0)
    return np.where(bdtr(below, num, share) >= levels, below, above)


def percentile_ratio(
    above: Percentile | None, below: Percentile | None, slow: int | None = None
) -> tuple[float | None, Interval | None]:
    """Return the ratio of two percentiles of the same units, and its interval.

    There is no interval if either percentile has none, or for fewer than LEAST_PAIRED units.
    """
    if above is None or below is None or not below.value:
        return None, None
    ratio = above.value / below.value
    num = len(above.influence)
    if above.interval is None or below.interval is None or ratio <= 0 or num < LEAST_PAIRED:
        return ratio, None
    others = (below.influence - above.influence) / (num - 1)
    error, freedom = standard_error(others, np.ones((num, 1)), slow)
    return ratio, Spread(ratio, error, freedom).interval()


def median_of(values: Sequence[float] | Float[np.ndarray, " n"]) -> Percentile:
    """Return the median of one or more independent values."""
    data = np.asarray(values, dtype=float)
    median = percentile_of(data, np.arange(len(data)), len(data), percent=50)
    assert median is not None
    return median


def percentile(values: Sequence[float] | Float[np.ndarray, " n"], percent: int) -> float | None:
    """Return the percentile, interpolated linearly, or None if there are no values."""
    return float(np.percentile(values, percent)) if len(values) else None
