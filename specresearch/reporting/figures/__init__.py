"""The figures of a report, each with its table and its description in words."""

from specresearch.reporting.figures.acceptance import by_position, histogram
from specresearch.reporting.figures.latencies import latencies
from specresearch.reporting.figures.speedups import by_length, overview

__all__ = ["by_length", "by_position", "histogram", "latencies", "overview"]
