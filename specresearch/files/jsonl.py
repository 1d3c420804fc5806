"""JSON Lines files that stay readable if the process is killed."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]], *, sync: bool = True) -> None:
    """Append all rows to a file or, after an error, none.

    Args:
        sync: wait until they have reached the disk.
    """
    data = "".join(map(to_line, rows)).encode()
    with path.open("ab", buffering=0) as stream:
        before = stream.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[stream.write(data) or 0 :]
            if sync:
                os.fsync(stream.fileno())
        except BaseException:
            stream.truncate(before)
            raise


def read_jsonl(path: Path, key: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a file, without a last line that was cut short; none if it is missing.

    Args:
        key: columns that identify a row.

    Raises:
        ValueError: a line before the last is damaged, or two rows have the same key.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{path}, line {number} is damaged ({error}); choose another hydra.run.dir"
            ) from error
    if key:
        _check_unique(path, rows, key)
    return rows


def _check_unique(path: Path, rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
    lines: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows, start=1):
        values = tuple(row[name] for name in key)
        first = lines.setdefault(values, number)
        if first != number:
            words = [f"{name} {value}" for name, value in zip(key, values, strict=True)]
            raise ValueError(
                f"{path}, line {number} is a second row of {', '.join(words)}, after line {first}: "
                "two processes wrote to this folder, or files were joined; measure again in "
                "another hydra.run.dir"
            )
