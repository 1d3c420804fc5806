"""The figures of a report, each with its table and its description in words."""

from specresearch.reporting.figures.acceptance import by_position, histogram
from specresearch.reporting.figures.classes import by_class
from specresearch.reporting.figures.controllers import controller_estimates, timeline
from specresearch.reporting.figures.latencies import latencies
from specresearch.reporting.figures.predicted import ideal_speedups, simulated
from specresearch.reporting.figures.speedups import by_length, by_load
from specresearch.reporting.figures.step_times import step_times

__all__ = [
    "by_class",
    "by_length",
    "by_load",
    "by_position",
    "controller_estimates",
    "histogram",
    "ideal_speedups",
    "latencies",
    "simulated",
    "step_times",
    "timeline",
]
