"""The folder of a load run: rows appended as requests finish, the steps of every pass, and the final figures."""

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset

from specresearch.bench.acceptance_profile import AcceptanceProfile
from specresearch.bench.side_comparison import SideComparison, StepTimes
from specresearch.files import replace_text, sync, written_whole
from specresearch.files.jsonl import read_jsonl, to_line
from specresearch.loadtest.rows import PassRow
from specresearch.loadtest.steps import COLUMNS, SUMMED, PassSteps
from specresearch.loadtest.summary import LOAD_DEFINITIONS, LoadFigures
from specresearch.loadtest.window import Limits
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

PASSES, STEPS_PARTS = "passes.jsonl", "steps"
PLACE = ("repeat", "side")
KEYS = {PASSES: PLACE, REQUESTS: (*PLACE, "id")}  # what no two rows share
CODE = (
    "bench/output_check.py",
    "bench/pass_observer.py",
    "loadtest/arrivals.py",
    "loadtest/loop.py",
    "loadtest/one_pass.py",
    "loadtest/rows.py",
    "loadtest/runner.py",
    "loadtest/workload.py",
    "rows",
)  # beside the decoding itself, what rows depend on


@dataclass(frozen=True, kw_only=True)
class LoadResults(LoadFigures):
    """What results.json holds: the figures, and what they are of; docs/load.md explains each part.

    Attributes:
        complete: Whether every pass came to its end.
        kind: `load` or `simulation`.
    """

    complete: bool
    schema: int = SCHEMA
    kind: str = "load"
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "LoadResults":
        """Return results as they were written."""
        parsers = {
            "acceptance": AcceptanceProfile.from_json,
            "step_times": lambda times: StepTimes(**times),
            "comparisons": SideComparison.from_json,
        }
        parts = dict(data)
        for name, parse in parsers.items():
            parts[name] = {side: parse(value) for side, value in data[name].items()}
        return LoadResults(**parts)

    @staticmethod
    def of(
        figures: LoadFigures, setting: Mapping[str, Any], limits: Limits, **told: Any
    ) -> "LoadResults":
        """setting: what was measured, which opens the summary. told: the other fields."""
        parts = {part.name: getattr(figures, part.name) for part in fields(figures)}
        parts["summary"] = {**setting, **figures.summary}
        return LoadResults(**parts, limits=asdict(limits), definitions=LOAD_DEFINITIONS, **told)


class LoadFolder(RunFolder):
    """A pass counts once its row stands in passes.jsonl; when a run is resumed, rows of unfinished ones are dropped.

    A complete run is continued when more `repeats` are asked for.
    """

    may_change = (*INDIFFERENT, "repeats")
    code = (*DECODING, *CODE)

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.passes: list[PassRow] = []
        super().__init__(path, config, resume=resume)

    def _load(self) -> None:
        check_schema(read_results(self.path) or {"schema": SCHEMA}, self.path)
        self.passes = [
            PassRow.from_json(row) for row in read_jsonl(self.path / PASSES, KEYS[PASSES])
        ]
        self._rewrite()

    def _rewrite(self) -> None:
        """Without the rows of passes that are not done."""
        replace_text(self.path / PASSES, "".join(to_line(row.to_json()) for row in self.passes))
        if (self.path / REQUESTS).exists():
            with (
                written_whole(self.path / REQUESTS) as part,
                part.open("w", encoding="utf-8") as stream,
            ):
                stream.writelines(to_line(row) for row in self._rows())

    @property
    def done(self) -> set[PassKey]:
        return {row.key for row in self.passes}

    @property
    def is_complete(self) -> bool:
        """An earlier session came to the end of all repeats that are asked for."""
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

    def forget(self, keys: Collection[PassKey]) -> None:
        """Drop passes that are to be decoded again. Raises ValueError where one that stays lacks rows, or has some twice."""
        self.passes = [row for row in self.passes if row.key not in keys]
        check_requests(self.path, self._rows(), self.passes)
        self._rewrite()

    @contextmanager
    def write_pass(self, key: PassKey) -> "Iterator[PassWriter]":
        """Where the rows of a pass go while it runs."""
        parts = self.path / STEPS_PARTS
        parts.mkdir(exist_ok=True)
        with (
            (self.path / REQUESTS).open(
                "a", encoding="utf-8", buffering=1
            ) as stream,  # whole lines: passes take turns
            pq.ParquetWriter(self._part(key), STEP_SCHEMA) as steps,
        ):
            yield PassWriter(stream, steps)

    def end_pass(self, row: PassRow) -> None:
        """Call when all of its rows are written, which reach the disk before this one."""
        for file in (self.path / REQUESTS, self._part(row.key)):
            if file.exists():
                sync(file)
        self._append(PASSES, [row.to_json()])
        self.passes.append(row)

    def requests(self) -> list[RequestRow]:
        """Of the passes that are done."""
        return [RequestRow.from_json(row) for row in self._rows()]

    def _rows(self) -> Iterator[dict[str, Any]]:
        done = self.done
        if not (self.path / REQUESTS).exists():
            return
        with (self.path / REQUESTS).open("rb") as lines:
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:  # torn off when the run was killed
                    continue
                if PassKey(row["repeat"], 0, row["side"]) in done:
                    yield row

    def steps(self, side: str) -> dict[int, PassSteps]:
        """Of every repeat that is done."""
        return read_steps(self.path, self.done, side)

    def _part(self, key: PassKey) -> Path:
        return _part(self.path, key)

    def write_steps(self, *, complete: bool) -> None:
        """steps.parquet from the passes that are done; a complete run no longer needs them apart."""
        if any(self._part(key).exists() for key in self.done):
            with (
                written_whole(self.path / STEPS) as part,
                pq.ParquetWriter(part, STEP_SCHEMA) as writer,
            ):
                for key in sorted(self.done):
                    for table in _tables(self.path, key):
                        writer.write_table(table)
        if complete:
            shutil.rmtree(self.path / STEPS_PARTS, ignore_errors=True)

    @property
    def files(self) -> list[Path]:
        """What there is to keep."""
        names = (CONFIG, PROVENANCE, RESULTS, REQUESTS, PASSES, STEPS)
        return [self.path / name for name in names if (self.path / name).exists()]


@dataclass
class PassWriter:
    """Rows of one pass, buffered."""

    _requests: Any
    _steps: pq.ParquetWriter

    def add_request(self, row: RequestRow) -> None:
        self._requests.write(to_line(row.to_json()))

    def add_steps(self, table: pa.Table) -> None:
        self._steps.write_table(table)


def check_requests(
    folder: Path, rows: Iterable[Mapping[str, Any]], passes: Iterable[PassRow]
) -> None:
    """Raises ValueError where a pass has the row of a request twice, or lacks one."""
    found = Counter((PassKey(row["repeat"], 0, row["side"]), row["id"]) for row in rows)
    per_place = Counter(key for key, _ in found)
    file, remedy = folder / REQUESTS, "measure again in another hydra.run.dir"
    for (key, id), count in found.items():
        if count > 1:
            raise ValueError(
                f"{file} has {count} rows of request {id}, repeat {key.repeat}, side {key.side}: two processes wrote to this "
                f"folder, or files were joined; {remedy}"
            )
    for one in passes:
        key, num_rows = one.key, per_place[one.key]
        if num_rows != one.num_finished:
            raise ValueError(
                f"{file} has {num_rows} rows of repeat {key.repeat}, side {key.side}, where {one.num_finished} requests "
                f"finished; remove the line of that pass from {PASSES} and add resume=true, which decodes it again, or {remedy}"
            )


def read_steps(folder: Path, keys: Iterable[PassKey], side: str) -> dict[int, PassSteps]:
    """Of every repeat of a side that stands among `keys`; passes whose steps are gone are left out."""
    found, columns = {}, [*COLUMNS, *SUMMED]
    for key in sorted(key for key in keys if key.side == side):
        part, whole = _part(folder, key), folder / STEPS
        if part.exists():
            found[key.repeat] = PassSteps.of(pq.read_table(part, columns=columns))
        elif whole.exists():
            own = [("repeat", "=", key.repeat), ("side", "=", side)]
            found[key.repeat] = PassSteps.of(pq.read_table(whole, columns=columns, filters=own))
    return found


def _tables(folder: Path, key: PassKey) -> Iterator[pa.Table]:
    """Return the steps of a pass, from its own file or from that of an earlier session."""
    part, whole = _part(folder, key), folder / STEPS
    file = part if part.exists() else whole
    if file.exists():
        own = (dataset.field("repeat") == key.repeat) & (dataset.field("side") == key.side)
        for batch in dataset.dataset(file, schema=STEP_SCHEMA).to_batches(filter=own):
            yield pa.Table.from_batches([batch])


def _part(folder: Path, key: PassKey) -> Path:
    return folder / STEPS_PARTS / f"{key.repeat}-{key.side}.parquet"
