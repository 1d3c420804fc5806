"""Local files of rows: JSON, JSON Lines, CSV, parquet and plain text; text formats also gzipped."""

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
    """One row of a source.

    Attributes:
        location: Where it is in its source, for error messages ("line 3", "row 3").
    """

    location: str
    fields: Mapping[str, Any]


class BadRecordError(Exception):
    """A record cannot be read; the message says where."""


def find_file(path: str, key: str = "dataset.path") -> Path:
    """Return the file at `path`, in which `~` is expanded.

    Args:
        key: The setting that named the file, for errors.

    Raises:
        ValueError: If it is not a file, or `read_records` does not know its extension.
    """
    file = Path(path).expanduser()
    folder = file.parent
    if file.is_dir():
        raise ValueError(f"{path} is a folder; name one of the files in it: {_list_names(file)}")
    if not folder.is_dir():
        raise ValueError(
            f"{path} does not exist, and neither does the folder {folder}; correct {key}"
        )
    if not file.exists():
        names = [entry.name for entry in folder.iterdir()]
        similar = get_close_matches(file.name, names, n=3, cutoff=0.5)
        hint = f"the folder {folder.resolve()} holds {_list_names(folder)}"
        if similar:
            hint = f"did you mean {' or '.join(similar)}?"
        raise ValueError(f"{path} does not exist; {hint}")
    if _suffix(file) not in (*TEXT_READERS, ".parquet"):
        known = ", ".join((".parquet", *TEXT_READERS))
        raise ValueError(
            f"{path}: unknown extension {_suffix(file)!r}; there are {known}, "
            "all but the first also as .gz"
        )
    return file


def read_records(file: Path) -> Iterator[Record]:
    """Yield the records of a file in order, read lazily.

    .json and .jsonl hold a list of objects, or one object a line; .csv a header line, then rows;
    .parquet rows; .txt one prompt a line, blank lines skipped. Only "\\n" ends a line: other
    separators belong to the text.

    Raises:
        ValueError: For a damaged file; the message names the file and the location.
    """
    try:
        if _suffix(file) == ".parquet":
            yield from _read_parquet(file)
            return
        newline = "" if _suffix(file) == ".csv" else "\n"
        open_binary = gzip.open if file.suffix == ".gz" else open
        with (
            open_binary(file, "rb") as binary,
            TextIOWrapper(binary, encoding="utf-8-sig", newline=newline) as stream,
        ):
            yield from TEXT_READERS[_suffix(file)](stream)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason}); convert it to UTF-8") from error
    except (BadRecordError, EOFError, gzip.BadGzipFile, pyarrow.ArrowInvalid, csv.Error) as error:
        raise ValueError(f"{file}: {error}") from error


def _read_json(stream: TextIOWrapper) -> Iterator[Record]:
    first = stream.read(1)
    while first.isspace():
        first = stream.read(1)
    stream.seek(0)
    if first == "[":
        yield from _read_json_list(stream)
    else:
        yield from _read_json_lines(stream)


def _read_json_list(stream: TextIOWrapper) -> Iterator[Record]:
    try:
        rows = json.load(stream)
    except json.JSONDecodeError as error:
        raise BadRecordError(
            f"bad JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    for number, row in enumerate(rows, start=1):
        yield _record(f"row {number}", row)


def _read_json_lines(stream: TextIOWrapper) -> Iterator[Record]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise BadRecordError(
                f"bad JSON at line {number}, column {error.colno}: {error.msg}; "
                "expected one object a line, or one list of objects"
            ) from error
        yield _record(f"line {number}", row)


def _record(location: str, row: Any) -> Record:
    if isinstance(row, str):
        return Record(location, {"text": row})
    if not isinstance(row, dict):
        raise BadRecordError(
            f"{location}: {type(row).__name__} in place of an object with named fields"
        )
    return Record(location, row)


def _read_csv(stream: TextIOWrapper) -> Iterator[Record]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    rows = csv.DictReader(stream)
    for row in rows:
        fields = {name: value for name, value in row.items() if name}
        yield Record(f"line {rows.line_num}", fields)


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
    """Return the extension without `.gz`; gzipped parquet keeps it, since it is not supported."""
    if file.suffix != ".gz":
        return file.suffix.lower()
    inner = file.with_suffix("").suffix.lower()
    return ".parquet.gz" if inner == ".parquet" else inner


def _list_names(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:8]) or "nothing"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
