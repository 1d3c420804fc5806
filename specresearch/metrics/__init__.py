"""What is measured, under the field's standard names; each is defined here once."""

from specresearch.metrics.counts import Counts
from specresearch.metrics.definitions import DEFINITIONS
from specresearch.metrics.request import RequestRecord
from specresearch.metrics.step import StepRecord
from specresearch.metrics.times import StepTimes

__all__ = ["DEFINITIONS", "Counts", "RequestRecord", "StepRecord", "StepTimes"]
