"""The folder of a load run: rows appended as requests finish, the steps of every pass, and the final figures."""

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset

from specresearch.bench.folder import CONFIG, INDIFFERENT, REQUESTS, RESULTS, STEPS, RunFolder
from specresearch.bench.jsonl import read_jsonl, replace_text, to_line
from specresearch.bench.load_records import SCHEMA, LoadRow, PassPlace, PassRow
from specresearch.bench.load_steps import COLUMNS, SUMMED, PassSteps
from specresearch.bench.load_summary import LOAD_DEFINITIONS, LoadFigures
from specresearch.bench.load_window import Limits

PASSES, STEPS_PARTS = "passes.jsonl", "steps"


@dataclass(frozen=True, kw_only=True)
class LoadResults(LoadFigures):
    """What results.json holds: the figures, and what they are of; docs/load.md says what each part is.

    complete: every pass came to its end. kind: `load`, or `simulation`.
    """

    complete: bool
    kind: str = "load"
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(figures: LoadFigures, setting: Mapping[str, Any], limits: Limits, **told: Any) -> "LoadResults":
        """setting: what was measured, which opens the summary. told: the other fields."""
        parts = {part.name: getattr(figures, part.name) for part in fields(figures)}
        parts["summary"] = {**setting, **figures.summary}
        return LoadResults(**parts, limits=asdict(limits), definitions=LOAD_DEFINITIONS, **told)


class LoadFolder(RunFolder):
    """A pass counts once its row stands in passes.jsonl; when a run is resumed, rows of unfinished ones are dropped.

    A complete run is continued when more `repeats` are asked for.
    """

    may_change = (*INDIFFERENT, "repeats")

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        self.passes: list[PassRow] = []
        super().__init__(path, config, resume=resume)

    def _load(self) -> None:
        self.passes = [PassRow.from_json(row) for row in read_jsonl(self.path / PASSES)]
        self._rewrite()

    def _rewrite(self) -> None:
        """Without the rows of passes that are not done."""
        replace_text(self.path / PASSES, "".join(to_line(row.to_json()) for row in self.passes))
        if (self.path / REQUESTS).exists():
            temporary = self.path / f"{REQUESTS}.part"
            with temporary.open("w", encoding="utf-8") as stream:
                stream.writelines(to_line(row) for row in self._rows())
            os.replace(temporary, self.path / REQUESTS)

    @property
    def done(self) -> set[PassPlace]:
        return {row.place for row in self.passes}

    @property
    def is_complete(self) -> bool:
        """An earlier session came to the end of all repeats that are asked for."""
        file, num_repeats = self.path / RESULTS, len({place.repeat for place in self.done})
        if not (self.is_resumed and file.exists()) or num_repeats < self.config.get("repeats", num_repeats):
            return False
        return json.loads(file.read_text(encoding="utf-8"))["complete"]

    def read_results(self) -> LoadResults:
        return LoadResults(**json.loads((self.path / RESULTS).read_text(encoding="utf-8")))

    def begin(self, provenance: Mapping[str, Any]) -> dict[str, Any]:
        before = self.read_results() if self.passes and (self.path / RESULTS).exists() else LoadResults(complete=False)
        merged = super().begin(provenance)
        self.write_results(replace(before, complete=False, provenance=merged))
        return merged

    def forget(self, places: Collection[PassPlace]) -> None:
        """Passes that are to be decoded again."""
        self.passes = [row for row in self.passes if row.place not in places]
        self._rewrite()

    @contextmanager
    def write_pass(self, place: PassPlace) -> "Iterator[PassWriter]":
        """Where the rows of a pass go while it runs."""
        parts = self.path / STEPS_PARTS
        parts.mkdir(exist_ok=True)
        with (
            (self.path / REQUESTS).open("a", encoding="utf-8", buffering=1) as stream,  # whole lines: passes take turns
            pq.ParquetWriter(self._part(place), SCHEMA) as steps,
        ):
            yield PassWriter(stream, steps)

    def end_pass(self, row: PassRow) -> None:
        """Call when all of its rows are written."""
        self._append(PASSES, [row.to_json()])
        self.passes.append(row)

    def requests(self) -> list[LoadRow]:
        """Of the passes that are done."""
        return [LoadRow.from_json(row) for row in self._rows()]

    def _rows(self) -> Iterator[dict[str, Any]]:
        done = self.done
        with (self.path / REQUESTS).open("rb") if (self.path / REQUESTS).exists() else open(os.devnull, "rb") as lines:
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:  # torn off when the run was killed
                    continue
                if PassPlace(row["repeat"], row["side"]) in done:
                    yield row

    def steps(self, side: str) -> dict[int, PassSteps]:
        """Of every repeat that is done."""
        return read_steps(self.path, self.done, side)

    def _part(self, place: PassPlace) -> Path:
        return _part(self.path, place)

    def write_steps(self, *, complete: bool) -> None:
        """steps.parquet from the passes that are done; a complete run no longer needs them apart."""
        if any(self._part(place).exists() for place in self.done):
            temporary = self.path / f"{STEPS}.part"
            with pq.ParquetWriter(temporary, SCHEMA) as writer:
                for place in sorted(self.done):
                    for table in _tables(self.path, place):
                        writer.write_table(table)
            os.replace(temporary, self.path / STEPS)
        if complete:
            shutil.rmtree(self.path / STEPS_PARTS, ignore_errors=True)

    @property
    def files(self) -> list[Path]:
        """What there is to keep."""
        return [self.path / name for name in (CONFIG, RESULTS, REQUESTS, PASSES, STEPS) if (self.path / name).exists()]


@dataclass
class PassWriter:
    """Rows of one pass, buffered."""

    _requests: Any
    _steps: pq.ParquetWriter

    def add_request(self, row: LoadRow) -> None:
        self._requests.write(to_line(row.to_json()))

    def add_steps(self, table: pa.Table) -> None:
        self._steps.write_table(table)


def read_steps(folder: Path, places: Iterable[PassPlace], side: str) -> dict[int, PassSteps]:
    """Of every repeat of a side that stands among `places`; passes whose steps are gone are left out."""
    found, columns = {}, [*COLUMNS, *SUMMED]
    for place in sorted(place for place in places if place.side == side):
        part, whole = _part(folder, place), folder / STEPS
        if part.exists():
            found[place.repeat] = PassSteps.of(pq.read_table(part, columns=columns))
        elif whole.exists():
            own = [("repeat", "=", place.repeat), ("side", "=", side)]
            found[place.repeat] = PassSteps.of(pq.read_table(whole, columns=columns, filters=own))
    return found


def _tables(folder: Path, place: PassPlace) -> Iterator[pa.Table]:
    """The steps of a pass, from its own file, or from the one of all passes that an earlier session left. Columns that an earlier
    version did not write are null."""
    part, whole = _part(folder, place), folder / STEPS
    file = part if part.exists() else whole
    if file.exists():
        own = (dataset.field("repeat") == place.repeat) & (dataset.field("side") == place.side)
        for batch in dataset.dataset(file, schema=SCHEMA).to_batches(filter=own):
            yield pa.Table.from_batches([batch])


def _part(folder: Path, place: PassPlace) -> Path:
    return folder / STEPS_PARTS / f"{place.repeat}-{place.side}.parquet"
