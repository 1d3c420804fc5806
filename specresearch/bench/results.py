"""The results folder: rows appended as they come, what a killed run left behind, and the final figures."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specresearch.bench.folder import CONFIG, REQUESTS, RESULTS, STEPS, RunFolder
from specresearch.bench.jsonl import read_jsonl, replace_text, to_line
from specresearch.bench.records import GroupRow, Place, RequestRow, step_row
from specresearch.metrics import StepRecord

GROUPS, STEPS_PART = "groups.jsonl", "steps.jsonl"


@dataclass(frozen=True)
class Results:
    """What results.json holds.

    summary: flat, figures only. intervals: bounds of the summary's figures. per_position: one entry per draft depth.
    complete: every group was decoded; False after an interruption.
    """

    complete: bool
    summary: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, Any] = field(default_factory=dict)
    per_position: list[dict[str, Any]] = field(default_factory=list)
    histogram: dict[str, Any] = field(default_factory=dict)
    by_category: dict[str, dict[str, Any]] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


class ResultsFolder(RunFolder):
    """The folder of `python -m specresearch.run`.

    A side of a group counts once its row stands in groups.jsonl; when a run is resumed, rows of unfinished ones are dropped
    and decoded again.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.requests: list[RequestRow] = []
        self.groups: list[GroupRow] = []
        self.done: set[Place] = set()
        super().__init__(path, config, resume=resume)

    def _load(self) -> None:
        self.groups = [GroupRow.from_json(row) for row in read_jsonl(self.path / GROUPS)]
        self.done = {row.place for row in self.groups}
        for name in (GROUPS, REQUESTS, STEPS_PART):
            if (self.path / name).exists():
                rows = read_jsonl(self.path / name)
                kept = [row for row in rows if Place(row["repeat"], row["group"], row["side"]) in self.done]
                replace_text(self.path / name, "".join(to_line(row) for row in kept))
        self.requests = [RequestRow.from_json(row) for row in read_jsonl(self.path / REQUESTS)]

    def begin(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        merged = super().begin(provenance)
        if not self.groups:
            self.write_results(Results(complete=False, provenance=merged))
        return merged

    def add_request(self, row: RequestRow) -> None:
        self.requests.append(row)
        self._append(REQUESTS, [row.to_json()])

    def add_group(self, row: GroupRow, steps: Sequence[StepRecord]) -> None:
        """Call after the group's requests."""
        self._append(STEPS_PART, [step_row(row.place, number, step) for number, step in enumerate(steps)])
        self._append(GROUPS, [row.to_json()])
        self.groups.append(row)
        self.done.add(row.place)

    def write_steps(self, *, complete: bool) -> None:
        """steps.parquet from the rows so far; a complete run no longer needs them as text."""
        part = self.path / STEPS_PART
        rows = read_jsonl(part)
        if rows:
            temporary = self.path / f"{STEPS}.part"
            pq.write_table(pa.Table.from_pylist(rows), temporary)
            os.replace(temporary, self.path / STEPS)
        if complete:
            part.unlink(missing_ok=True)

    @property
    def files(self) -> list[Path]:
        """What there is to keep."""
        names = (CONFIG, RESULTS, REQUESTS, GROUPS, STEPS)
        return [self.path / name for name in names if (self.path / name).exists()]
