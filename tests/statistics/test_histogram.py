"""Histograms."""

from specresearch.statistics import (
    Histogram,
)


def test_histogram_counts_every_value_once_and_closes_the_last_bin() -> None:
    histogram = Histogram.of([0.0, 0.05, 0.5, 0.95, 1.0])
    assert histogram.counts == (2, 0, 0, 0, 0, 1, 0, 0, 0, 2)
    assert histogram.edges[0] == 0
    assert histogram.edges[-1] == 1
    assert histogram.p50 == 0.5
