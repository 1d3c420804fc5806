"""The folder of a load test: rows of finished requests, steps of every pass, and the figures."""

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset

from specresearch.files import replace_text, sync, written_whole
from specresearch.files.jsonl import read_jsonl, to_line
from specresearch.loadtest.results import LoadResults
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.steps import COLUMNS, SUMMED, PassSteps
from specresearch.results.fingerprint import DECODING
from specresearch.results.folder import (
    CONFIG,
    INDIFFERENT,
    PROVENANCE,
    REQUESTS,
    RESULTS,
    STEPS,
    RunFolder,
    read_results,
)
from specresearch.rows import SCHEMA, STEP_SCHEMA, PassKey, RequestRow, check_schema

PASSES = "passes.jsonl"
STEPS_PARTS = "steps"
PASS_KEY = ("repeat", "side")  # columns that identify a pass
CODE = (
    "bench/output_check.py",
    "bench/pass_observer.py",
    "loadtest/arrivals.py",
    "loadtest/engines.py",
    "loadtest/loop.py",
    "loadtest/one_pass.py",
    "loadtest/prompt_pool.py",
    "loadtest/rows.py",
    "loadtest/runner.py",
    "loadtest/workload.py",
    "rows",
)  # besides the decoding itself, what rows depend on


class LoadFolder(RunFolder):
    """The folder of a load test.

    A pass counts once its row is in passes.jsonl; on resuming, the rows of unfinished passes are
    dropped. A complete run can be continued with more `repeats`.

    Attributes:
        passes: The finished passes.
    """

    may_change = (*INDIFFERENT, "repeats")
    chosen = ("max_running",)
    code = (*DECODING, *CODE)

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.passes: list[PassRow] = []
        super().__init__(path, config, resume=resume)

    def _load(self) -> None:
        check_schema(read_results(self.path) or {"schema": SCHEMA}, self.path)
        rows = read_jsonl(self.path / PASSES, PASS_KEY)
        self.passes = [PassRow.from_json(row) for row in rows]
        self._drop_unfinished()

    def _drop_unfinished(self) -> None:
        """Rewrite the files without the rows of unfinished passes."""
        replace_text(self.path / PASSES, "".join(to_line(row.to_json()) for row in self.passes))
        file = self.path / REQUESTS
        if file.exists():
            with written_whole(file) as part, part.open("w", encoding="utf-8") as stream:
                stream.writelines(map(to_line, self._request_rows()))

    @property
    def done(self) -> set[PassKey]:
        return {row.key for row in self.passes}

    @property
    def is_complete(self) -> bool:
        """Return whether an earlier session finished all repeats that are asked for."""
        num_repeats = len({key.repeat for key in self.done})
        if not self.is_resumed or num_repeats < self.config.get("repeats", num_repeats):
            return False
        results = self.read_results()
        return results is not None and results.complete

    def read_results(self) -> LoadResults | None:
        """Return the last figures, or None if there are none."""
        results = read_results(self.path)
        return None if results is None else LoadResults.from_json(results)

    def begin(self, provenance: Mapping[str, Any], *parts: object) -> dict[str, Any]:
        before = (self.read_results() if self.passes else None) or LoadResults(complete=False)
        merged = super().begin(provenance, *parts)
        self.write_results(replace(before, complete=False, provenance=merged))
        return merged

    def drop(self, keys: Collection[PassKey]) -> None:
        """Drop passes that are to be decoded again.

        Raises:
            ValueError: If a remaining pass lacks rows or has duplicates.
        """
        self.passes = [row for row in self.passes if row.key not in keys]
        check_requests(self.path, self._request_rows(), self.passes)
        self._drop_unfinished()

    @contextmanager
    def write_pass(self, key: PassKey) -> "Iterator[PassWriter]":
        """Open the files for the rows of a pass while it runs."""
        file = self._steps_part(key)
        file.parent.mkdir(exist_ok=True)
        # Passes take turns, so requests are written in whole lines.
        with (
            (self.path / REQUESTS).open("a", encoding="utf-8", buffering=1) as requests,
            pq.ParquetWriter(file, STEP_SCHEMA) as steps,
        ):
            yield PassWriter(requests, steps)

    def end_pass(self, row: PassRow) -> None:
        """Mark a pass as finished, after its rows have reached the disk."""
        for file in (self.path / REQUESTS, self._steps_part(row.key)):
            if file.exists():
                sync(file)
        self._append(PASSES, [row.to_json()])
        self.passes.append(row)

    def requests(self) -> list[RequestRow]:
        """Return the requests of the finished passes."""
        return [RequestRow.from_json(row) for row in self._request_rows()]

    def _request_rows(self) -> Iterator[dict[str, Any]]:
        done = self.done
        if not (self.path / REQUESTS).exists():
            return
        with (self.path / REQUESTS).open("rb") as lines:
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:  # cut short when the run was killed
                    continue
                if _key(row) in done:
                    yield row

    def steps(self, side: str) -> dict[int, PassSteps]:
        """Return the steps of a side by finished repeat, without passes whose steps are missing."""
        return read_steps(self.path, self.done, side)

    def write_steps(self, *, complete: bool) -> None:
        """Write steps.parquet from the finished passes; a complete run drops the separate files."""
        if any(self._steps_part(key).exists() for key in self.done):
            with (
                written_whole(self.path / STEPS) as part,
                pq.ParquetWriter(part, STEP_SCHEMA) as writer,
            ):
                for key in sorted(self.done):
                    for batch in _step_batches(self.path, key):
                        writer.write_batch(batch)
        if complete:
            shutil.rmtree(self.path / STEPS_PARTS, ignore_errors=True)

    def _steps_part(self, key: PassKey) -> Path:
        return _steps_part(self.path, key)

    @property
    def files(self) -> list[Path]:
        """Return the files worth keeping."""
        names = (CONFIG, PROVENANCE, RESULTS, REQUESTS, PASSES, STEPS)
        return [self.path / name for name in names if (self.path / name).exists()]


@dataclass
class PassWriter:
    """Writes the rows of one pass."""

    _requests: TextIO
    _steps: pq.ParquetWriter

    def add_request(self, row: RequestRow) -> None:
        self._requests.write(to_line(row.to_json()))

    def add_steps(self, table: pa.Table) -> None:
        self._steps.write_table(table)


def check_requests(
    folder: Path, rows: Iterable[Mapping[str, Any]], passes: Iterable[PassRow]
) -> None:
    """Raise ValueError if a pass has the row of a request twice, or lacks one."""
    counts = Counter((_key(row), row["id"]) for row in rows)
    num_requests = Counter(key for key, _ in counts)
    file = folder / REQUESTS
    remedy = "measure again in another hydra.run.dir"
    for (key, id), count in counts.items():
        if count > 1:
            raise ValueError(
                f"{file} has {count} rows of request {id}, repeat {key.repeat}, side {key.side}: "
                f"two processes wrote to this folder, or files were joined; {remedy}"
            )
    for row in passes:
        num_rows = num_requests[row.key]
        if num_rows != row.num_finished:
            raise ValueError(
                f"{file} has {num_rows} rows of repeat {row.key.repeat}, side {row.key.side}, "
                f"where {row.num_finished} requests finished; remove the line of that pass from "
                f"{PASSES} and add resume=true, which decodes it again, or {remedy}"
            )


def read_steps(folder: Path, keys: Iterable[PassKey], side: str) -> dict[int, PassSteps]:
    """Return the steps of a side by repeat, without passes whose steps are missing."""
    steps = {}
    for key in sorted(key for key in keys if key.side == side):
        file = _steps_file(folder, key)
        if file.exists():
            is_pass = [("repeat", "=", key.repeat), ("side", "=", side)]
            table = pq.read_table(file, columns=[*COLUMNS, *SUMMED], filters=is_pass)
            steps[key.repeat] = PassSteps.of(table)
    return steps


def _step_batches(folder: Path, key: PassKey) -> Iterator[pa.RecordBatch]:
    file = _steps_file(folder, key)
    if file.exists():
        is_pass = (dataset.field("repeat") == key.repeat) & (dataset.field("side") == key.side)
        yield from dataset.dataset(file, schema=STEP_SCHEMA).to_batches(filter=is_pass)


def _steps_file(folder: Path, key: PassKey) -> Path:
    """Return the file with the steps of a pass: its own, or that of an earlier session."""
    part = _steps_part(folder, key)
    return part if part.exists() else folder / STEPS


def _steps_part(folder: Path, key: PassKey) -> Path:
    return folder / STEPS_PARTS / f"{key.repeat}-{key.side}.parquet"


def _key(row: Mapping[str, Any]) -> PassKey:
    return PassKey(row["repeat"], 0, row["side"])
