"""The metrics of a training run, in a file and in the tracker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from specresearch.files import replace_text
from specresearch.files.jsonl import append_rows, read_jsonl, to_line
from specresearch.trackers import Tracker


class History:
    """Logs metrics as JSON lines.

    Attributes:
        first: Metrics of the first evaluation.
        last: Metrics of the last evaluation.
    """

    def __init__(self, file: Path, tracker: Tracker) -> None:
        self.file = file
        self.tracker = tracker
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def open(self, step: int) -> None:
        """Drop rows after `step`, where the run resumes; at 0, drop all."""
        rows = [row for row in read_jsonl(self.file) if step and row["step"] <= step]
        replace_text(self.file, "".join(map(to_line, rows)))
        for row in rows:
            self._remember({key: value for key, value in row.items() if key != "step"})

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        append_rows(self.file, [{"step": step, **metrics}])
        self.tracker.log(step, metrics)
        self._remember(metrics)

    def table(self) -> Table:
        """Return the first and last evaluation side by side."""
        table = Table("held-out prompts", "before", "after")
        for key, value in self.last.items():
            before = f"{self.first[key]:.3f}" if key in self.first else "-"
            table.add_row(key, before, f"{value:.3f}")
        return table

    def _remember(self, metrics: Mapping[str, Any]) -> None:
        numbers = {key: value for key, value in metrics.items() if isinstance(value, float)}
        if any(key.startswith("predicted/") for key in numbers):
            self.first = self.first or numbers
            self.last = numbers
