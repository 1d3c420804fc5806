"""Histograms of values in a fixed range."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specresearch.statistics.percentiles import percentile


@dataclass(frozen=True)
class Histogram:
    """Counts of values: counts[i] lie in [edges[i], edges[i + 1]); the last bin is closed."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    p10: float | None
    p50: float | None
    p90: float | None

    @staticmethod
    def of(
        values: Sequence[float], low: float = 0.0, high: float = 1.0, num_bins: int = 10
    ) -> "Histogram":
        """Return the histogram of the values with bins of equal width from `low` to `high`."""
        counts, edges = np.histogram(values, bins=num_bins, range=(low, high))
        return Histogram(
            edges=tuple(np.round(edges, 6).tolist()),
            counts=tuple(counts.tolist()),
            p10=percentile(values, 10),
            p50=percentile(values, 50),
            p90=percentile(values, 90),
        )
