"""The figures of a report, each with its table and its description in words."""

from specresearch.reporting.figures.acceptance import by_position, histogram
from specresearch.reporting.figures.foreseen import foreseen
from specresearch.reporting.figures.latency import latencies
from specresearch.reporting.figures.mixed import by_class
from specresearch.reporting.figures.speed import by_length, by_load, predicted
from specresearch.reporting.figures.steps import step_times
from specresearch.reporting.figures.thoughts import thoughts
from specresearch.reporting.figures.traces import trace

__all__ = [
    "by_class",
    "by_length",
    "by_load",
    "by_position",
    "foreseen",
    "histogram",
    "latencies",
    "predicted",
    "step_times",
    "thoughts",
    "trace",
]
