"""Measuring: a method beside its own baseline, the figures, and what a run leaves behind."""

from specresearch.bench.folder import Results, ResultsFolder
from specresearch.bench.report import print_report
from specresearch.bench.runner import Runner
from specresearch.bench.settings import RunSettings

__all__ = ["Results", "ResultsFolder", "RunSettings", "Runner", "print_report"]
