"""Confidence intervals, percentiles and histograms."""

from specresearch.statistics.histogram import Histogram
from specresearch.statistics.jackknife import (
    INTERVALS,
    LEAST_SLOW,
    LEAST_UNITS,
    LEVEL,
    POSITIVE,
    SERIES_INTERVALS,
    SHARE,
    Interval,
    Spread,
    Statistic,
    interval_of,
    ratio_of,
    spread,
    value_of,
)
from specresearch.statistics.percentiles import (
    LEAST_PAIRED,
    PERCENTILE_INTERVALS,
    Percentile,
    median_of,
    percentile,
    percentile_of,
    percentile_ratio,
)

__all__ = [
    "INTERVALS",
    "LEAST_PAIRED",
    "LEAST_SLOW",
    "LEAST_UNITS",
    "LEVEL",
    "PERCENTILE_INTERVALS",
    "POSITIVE",
    "SERIES_INTERVALS",
    "SHARE",
    "Histogram",
    "Interval",
    "Percentile",
    "Spread",
    "Statistic",
    "interval_of",
    "median_of",
    "percentile",
    "percentile_of",
    "percentile_ratio",
    "ratio_of",
    "spread",
    "value_of",
]
