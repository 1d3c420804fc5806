"""The results folder of a run: its rows, appended as they come, and the final figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specresearch.bench.rows import GroupRow
from specresearch.bench.summary import Figures
from specresearch.files import replace_text, sync, written_whole
from specresearch.files.jsonl import read_jsonl, to_line
from specresearch.metrics import StepRecord
from specresearch.results.fingerprint import DECODING
from specresearch.results.folder import (
    CONFIG,
    PROVENANCE,
    REQUESTS,
    RESULTS,
    STEPS,
    RunFolder,
    read_results,
)
from specresearch.rows import SCHEMA, PassKey, RequestRow, check_schema, step_row

GROUPS, STEPS_PART = "groups.jsonl", "steps.jsonl"
PASS_KEY = ("repeat", "group", "side")
KEYS = {
    GROUPS: PASS_KEY,
    REQUESTS: (*PASS_KEY, "row", "turn"),
    STEPS_PART: (*PASS_KEY, "step"),
}  # columns that identify a row of each file


@dataclass(frozen=True, kw_only=True)
class Results(Figures):
    """The content of results.json.

    Attributes:
        complete: Whether every group was decoded; False after an interruption.
        advice: What to draft instead, if the method was slower than plain decoding.
    """

    complete: bool
    advice: str | None = None
    schema: int = SCHEMA
    definitions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


class ResultsFolder(RunFolder):
    """The folder of `python -m specresearch.run`.

    One side of a group is complete once its row is in groups.jsonl. A resumed run drops the rows of
    incomplete ones and decodes them again.

    Attributes:
        done: The passes that are complete.
    """

    chosen = ("batch_size",)
    code = (
        *DECODING,
        "bench/output_check.py",
        "bench/pass_observer.py",
        "bench/rows.py",
        "bench/runner.py",
        "rows",
    )

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.requests: list[RequestRow] = []
        self.groups: list[GroupRow] = []
        self.done: set[PassKey] = set()
        super().__init__(path, config, resume=resume)

    def _load(self) -> None:
        check_schema(read_results(self.path) or {"schema": SCHEMA}, self.path)
        self.groups = [GroupRow.from_json(row) for row in read_rows(self.path, GROUPS)]
        self.done = {row.key for row in self.groups}
        for name in (GROUPS, REQUESTS, STEPS_PART):
            if (self.path / name).exists():
                kept = [row for row in read_rows(self.path, name) if PassKey.of(row) in self.done]
                replace_text(self.path / name, "".join(to_line(row) for row in kept))
        requests = read_rows(self.path, REQUESTS)
        check_requests(self.path, requests, [row.to_json() for row in self.groups])
        self.requests = [RequestRow.from_json(row) for row in requests]

    def begin(self, provenance: Mapping[str, Any], *parts: object) -> dict[str, Any]:
        merged = super().begin(provenance, *parts)
        if not self.groups:
            self.write_results(Results(complete=False, provenance=merged))
        return merged

    def add_request(self, row: RequestRow) -> None:
        self.requests.append(row)
        self._append(REQUESTS, [row.to_json()], sync=False)

    def add_group(self, row: GroupRow, steps: Sequence[StepRecord], begin: float = 0.0) -> None:
        """Append a group, after the requests that were added before.

        Args:
            begin: When the group began, on the engine's clock.
        """
        if (self.path / REQUESTS).exists():
            sync(self.path / REQUESTS)
        rows = [step_row(row.key, number, step, begin) for number, step in enumerate(steps)]
        self._append(STEPS_PART, rows)
        self._append(GROUPS, [row.to_json()])
        self.groups.append(row)
        self.done.add(row.key)

    def write_steps(self, *, complete: bool) -> None:
        """Write steps.parquet; a complete run no longer needs the rows as text."""
        rows = read_rows(self.path, STEPS_PART)
        if rows:
            with written_whole(self.path / STEPS) as part:
                pq.write_table(pa.Table.from_pylist(rows), part)
        if complete:
            (self.path / STEPS_PART).unlink(missing_ok=True)

    @property
    def files(self) -> list[Path]:
        """Return the files that exist and are worth keeping."""
        names = (CONFIG, PROVENANCE, RESULTS, REQUESTS, GROUPS, STEPS)
        return [self.path / name for name in names if (self.path / name).exists()]


def read_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a file, or raise ValueError if it is damaged or holds a row twice."""
    return read_jsonl(folder / name, KEYS[name])


def check_requests(
    folder: Path, requests: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]]
) -> None:
    """Raise ValueError if a group lacks the row of one of its requests."""
    num_rows = Counter(PassKey.of(row) for row in requests)
    for group in groups:
        key = PassKey.of(group)
        if num_rows[key] != group["num_requests"]:
            name = ", ".join(f"{column} {group[column]}" for column in PASS_KEY)
            raise ValueError(
                f"{folder / REQUESTS} has {num_rows[key]} rows of {name}, where "
                f"{group['num_requests']} requests finished; remove the line of that group from "
                f"{GROUPS} and add resume=true, which decodes it again, or measure again in "
                "another hydra.run.dir"
            )
