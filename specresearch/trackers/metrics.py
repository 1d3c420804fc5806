"""What all trackers share: steps and requests become curves, histograms and a summary."""

import importlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from specresearch.metrics import RequestRecord, StepRecord


class MetricsTracker(ABC):
    """Turns records into curves and histograms, which a subclass sends to its service.

    A new tracker defines `start`, `log_values`, `log_histograms` and `end`. It also defines
    `last_step` if the service does not number the points of a curve by itself.

    Args:
        every: Steps averaged into one point of the live curves.
    """

    def __init__(self, every: int = 10) -> None:
        if every < 1:
            raise ValueError(f"tracker.every={every} must be at least 1")
        self.every = every
        self._pending: dict[str, list[StepRecord]] = defaultdict(list)
        self._acceptance_rates: dict[str, list[float]] = defaultdict(list)
        self._itls: dict[str, list[float]] = defaultdict(list)
        self._steps: dict[str, int] = {}

    @abstractmethod
    def start(self, config: Mapping[str, Any], folder: Path) -> None:
        """Start tracking, or continue the run that was tracked in this folder.

        Raises:
            ValueError: If tracking cannot work.
        """

    @abstractmethod
    def log_values(self, values: Mapping[str, Any], step: int) -> None:
        """Add a point to each curve. Values are numbers, or samples of text in training."""

    @abstractmethod
    def log_histograms(self, histograms: Mapping[str, Sequence[float]]) -> None: ...

    @abstractmethod
    def end(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Log the summary, keep the files if the service can, and close the run."""

    def last_step(self, curve: str) -> int:
        """Return the step of the last point that an earlier session logged, or 0."""
        return 0

    def log_step(self, side: str, record: StepRecord) -> None:
        self._pending[side].append(record)
        if len(self._pending[side]) >= self.every:
            self._log_pending(side)

    def log_request(self, side: str, record: RequestRecord) -> None:
        counts = record.counts
        if counts.num_draft_tokens:
            self._acceptance_rates[side].append(counts.draft_acceptance_rate)
        self._itls[side].extend(record.itl)
        values = {
            f"{side}/ttft": record.ttft,
            f"{side}/tpot": record.tpot,
            f"{side}/e2el": record.e2el,
            f"{side}/tokens_per_target_forward": counts.tokens_per_target_forward,
            f"{side}/mean_acceptance_length": counts.mean_acceptance_length,
            f"{side}/draft_acceptance_rate": counts.draft_acceptance_rate,
        }
        self._log_next(values, 1)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self.log_values(values, step)

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        for side in list(self._pending):
            self._log_pending(side)
        histograms = {}
        for side, rates in self._acceptance_rates.items():
            histograms[f"{side}/request_acceptance_rate"] = rates
        for side, itls in self._itls.items():
            if itls:
                histograms[f"{side}/itl"] = itls
        if histograms:
            self.log_histograms(histograms)
        self.end(summary, files)

    def _log_pending(self, side: str) -> None:
        """Log the means of the pending steps as one point."""
        records = self._pending.pop(side)
        times = [record.times for record in records]
        values = {
            f"{side}/new_tokens_per_step": _mean_total(r.num_new_tokens for r in records),
            f"{side}/draft_tokens_per_step": _mean_total(r.num_draft_tokens for r in records),
            f"{side}/accepted_tokens_per_step": _mean_total(r.num_accepted_tokens for r in records),
            f"{side}/step_ms": 1e3 * fmean(time.total for time in times),
            f"{side}/propose_ms": 1e3 * fmean(time.propose for time in times),
            f"{side}/verify_ms": 1e3 * fmean(time.verify for time in times),
        }
        self._log_next(values, len(records))

    def _log_next(self, values: Mapping[str, float], num_steps: int) -> None:
        """Log values `num_steps` after the previous point of the same curves."""
        curve = next(iter(values))
        if curve not in self._steps:
            self._steps[curve] = self.last_step(curve)
        self._steps[curve] += num_steps
        self.log_values(values, self._steps[curve])


def check_imports(extra: str, *modules: str) -> None:
    """Raise ValueError if a package of an extra is missing or broken, before a model is loaded."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"tracker={extra} cannot import {module} ({error}); run "
                f"`pip install 'specresearch[{extra}]'`, or use tracker=none"
            ) from error


def _mean_total(counts: Iterable[Sequence[int]]) -> float:
    """Return the mean over steps of the total over rows."""
    return fmean(map(sum, counts))
