"""Local files of rows: JSON, JSON Lines, CSV, parquet and plain text, the text formats also gzipped (`.gz`)."""

import csv
import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


@dataclass(frozen=True)
class Record:
    """The fields of one row and where it stands in its source, as an error message says it ("line 3", "row 3")."""

    place: str
    fields: Mapping[str, Any]


def find_file(path: str, key: str = "dataset.path") -> Path:
    """The file at `path` (`~` allowed), of an extension that `read_records` knows; anything else is a ValueError.

    key: the setting that named it, for messages.
    """
    file = Path(path).expanduser()
    folder = file.parent
    if file.is_dir():
        raise ValueError(f"{path} is a folder; name one of the files in it: {_names(file)}")
    if not folder.is_dir():
        raise ValueError(
            f"{path} does not exist, and neither does the folder {folder}; correct {key}"
        )
    if not file.exists():
        names = [entry.name for entry in folder.iterdir()]
        similar = get_close_matches(file.name, names, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(similar)}?"
            if similar
            else f"that folder holds {_names(folder)}"
        )
        raise ValueError(f"{path} does not exist; {hint}")
    if _suffix(file) not in (*TEXT_READERS, ".parquet"):
        known = ", ".join((".parquet", *TEXT_READERS))
        raise ValueError(
            f"{path}: unknown extension {_suffix(file)!r}; there are {known}, all but the first also as .gz"
        )
    return file


def read_records(file: Path) -> Iterator[Record]:
    """The file's records in order, read lazily. A damaged file is a ValueError with the file and the place.

    .json, .jsonl: a list of objects, or one object a line. .csv: a header line, then rows. .parquet: rows.
    .txt: one prompt a line, blank lines skipped. Lines end with "\\n" alone: other separators belong to the text.
    """
    try:
        if _suffix(file) == ".parquet":
            yield from _read_parquet(file)
            return
        newline = "" if _suffix(file) == ".csv" else "\n"
        with (
            gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as binary,
            TextIOWrapper(binary, encoding="utf-8-sig", newline=newline) as stream,
        ):
            yield from TEXT_READERS[_suffix(file)](stream)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason}); convert it to UTF-8") from error
    except (BadRecord, EOFError, gzip.BadGzipFile, pyarrow.ArrowInvalid, csv.Error) as error:
        raise ValueError(f"{file}: {error}") from error


class BadRecord(Exception):
    """A record that cannot be read; the message says where."""


def _read_json(stream: TextIOWrapper) -> Iterator[Record]:
    first = stream.read(1)
    while first.isspace():
        first = stream.read(1)
    stream.seek(0)
    if first == "[":
        try:
            rows = json.load(stream)
        except json.JSONDecodeError as error:
            raise BadRecord(
                f"bad JSON at line {error.lineno}, column {error.colno}: {error.msg}"
            ) from error
        for number, row in enumerate(rows, start=1):
            yield _record(f"row {number}", row)
        return
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadRecord(
                f"bad JSON at line {number}, column {error.colno}: {error.msg}; "
                "expected one object a line, or one list of objects"
            ) from error
        yield _record(f"line {number}", row)


def _record(place: str, row: Any) -> Record:
    if isinstance(row, str):
        return Record(place, {"text": row})
    if not isinstance(row, dict):
        raise BadRecord(f"{place}: {type(row).__name__} in place of an object with named fields")
    return Record(place, row)


def _read_csv(stream: TextIOWrapper) -> Iterator[Record]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    rows = csv.DictReader(stream)
    for row in rows:
        yield Record(f"line {rows.line_num}", {name: value for name, value in row.items() if name})


def _read_text(stream: TextIOWrapper) -> Iterator[Record]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            yield Record(f"line {number}", {"text": line.rstrip("\r\n")})


def _read_parquet(file: Path) -> Iterator[Record]:
    with pyarrow.parquet.ParquetFile(file) as table:
        number = 0
        for batch in table.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield Record(f"row {number}", row)


TEXT_READERS = {".json": _read_json, ".jsonl": _read_json, ".csv": _read_csv, ".txt": _read_text}


def _suffix(file: Path) -> str:
    if file.suffix == ".gz":
        file = file.with_suffix("")
        return file.suffix.lower() if file.suffix.lower() != ".parquet" else ".parquet.gz"
    return file.suffix.lower()


def _names(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:8]) or "nothing"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
