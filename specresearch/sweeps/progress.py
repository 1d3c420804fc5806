"""The progress of a multirun: a line before every job, with an estimate of the remaining time."""

import sys
import time
from math import prod
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from specresearch.progress import duration


class SweepProgress(Callback):
    """A Hydra callback that prints progress; silent for single runs and with `progress=false`."""

    def __init__(self) -> None:
        self.num_jobs: int | None = None
        self._started = 0.0
        self._first_job: int | None = None
        self._swept: set[str] = set()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        num_values = swept(config)
        self.num_jobs = prod(num_values.values())
        self._swept = set(num_values)
        self._started = time.monotonic()

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN or not config.get("progress", True):
            return
        job = int(config.hydra.job.num)
        if self._first_job is None:
            self._first_job = job
        overrides = config.hydra.overrides.task
        varied = [word for word in overrides if word.split("=")[0] in self._swept]
        seconds = time.monotonic() - self._started
        print(self.line(job, " ".join(varied), seconds), file=sys.stderr)

    def line(self, job: int, overrides: str, seconds: float) -> str:
        """Return the line before a job.

        Args:
            job: Its number, from 0.
            seconds: Time since the multirun began.
        """
        if not self.num_jobs:
            return f"run {job + 1}: {overrides}"
        line = f"run {job + 1} of {self.num_jobs}: {overrides}"
        num_done = job - (self._first_job or 0)
        if not num_done:
            return line
        remaining = seconds / num_done * (self.num_jobs - job)
        return f"{line}; {duration(seconds)} so far, about {duration(remaining)} to go"


def swept(config: DictConfig) -> dict[str, int]:
    """Return the settings that a multirun varies, and the number of values of each.

    They come from the command line, and from the parameters of an experiment.
    """
    overrides = list(config.hydra.overrides.task)
    named = {override.split("=")[0].lstrip("+") for override in overrides}
    for key, value in (config.hydra.sweeper.get("params") or {}).items():
        if str(key).lstrip("+") not in named:
            overrides.append(f"{key}={value}")
    num_values = {}
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.is_sweep_override():
            key = str(override.input_line).split("=")[0]
            num_values[key] = sum(1 for _ in override.sweep_iterator())
    return num_values
