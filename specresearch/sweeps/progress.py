"""Where a multirun stands: a line before every job, with how long the rest will take."""

import sys
import time
from math import prod
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig


class SweepProgress(Callback):
    """A Hydra callback; single runs do not concern it, nor does `progress=false`."""

    def __init__(self) -> None:
        self.num_jobs: int | None = None
        self._began = 0.0
        self._first: int | None = None
        self._swept: set[str] = set()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        choices = swept(config)
        self.num_jobs, self._swept = prod(choices.values()), set(choices)
        self._began = time.monotonic()

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        if config.hydra.mode != RunMode.MULTIRUN or not config.get("progress", True):
            return
        number = int(config.hydra.job.num)
        self._first = number if self._first is None else self._first
        own = [word for word in config.hydra.overrides.task if word.split("=")[0] in self._swept]
        print(self.line(number, " ".join(own), time.monotonic() - self._began), file=sys.stderr)

    def line(self, number: int, overrides: str, seconds: float) -> str:
        """number: of the job, from 0. seconds: since the multirun began."""
        of = f" of {self.num_jobs}" if self.num_jobs else ""
        done = number - (self._first or 0)
        rest = ""
        if self.num_jobs and done:
            rest = f"; {_minutes(seconds)} so far, about {_minutes(seconds / done * (self.num_jobs - number))} to go"
        return f"run {number + 1}{of}: {overrides}{rest}"


def swept(config: DictConfig) -> dict[str, int]:
    """What the multirun goes through, and how many values of each: from the command line and from an experiment's parameters."""
    own = dict(config.hydra.sweeper.params or {}) if "params" in config.hydra.sweeper else {}
    given = list(config.hydra.overrides.task)
    named = {override.split("=")[0].lstrip("+") for override in given}
    given += [f"{key}={value}" for key, value in own.items() if str(key).lstrip("+") not in named]
    parsed = OverridesParser.create().parse_overrides(given)
    return {
        str(override.input_line).split("=")[0]: sum(1 for _ in override.sweep_iterator())
        for override in parsed
        if override.is_sweep_override()
    }


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
