"""The figures of a report, each with its table and its description in words."""

from specresearch.reporting.figures.acceptance import by_position, histogram
from specresearch.reporting.figures.classes import by_class
from specresearch.reporting.figures.controller_estimates import controller_estimates
from specresearch.reporting.figures.ideal import ideal_speedups
from specresearch.reporting.figures.latencies import latencies
from specresearch.reporting.figures.simulated import simulated
from specresearch.reporting.figures.speedups import by_length, by_load
from specresearch.reporting.figures.step_times import step_times
from specresearch.reporting.figures.timelines import timeline

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
