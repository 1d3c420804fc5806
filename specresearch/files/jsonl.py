"""Files of rows that a killed run leaves readable: a line of JSON for each."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def to_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]], *, sync: bool = True) -> None:
    """Write rows behind those of a file: all of them, or after an error none. sync: wait until they have reached the disk."""
    text = "".join(map(to_line, rows)).encode()
    with path.open("ab", buffering=0) as stream:
        before = stream.seek(0, os.SEEK_END)
        try:
            while text:
                text = text[stream.write(text) or 0 :]
            if sync:
                os.fsync(stream.fileno())
        except BaseException:
            stream.truncate(before)
            raise


def read_jsonl(path: Path, key: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read the rows of a file whose last line may have been torn off; no file, no rows.

    key: columns that no two rows share. Raises ValueError for damage before the last line, and for a row that is there twice.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{path}, line {number} is damaged ({error}); choose another hydra.run.dir"
            ) from error
        rows.append(row)
    _check_unique(path, rows, key)
    return rows


def _check_unique(path: Path, rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> None:
    lines: dict[tuple[Any, ...], int] = {}
    for number, row in enumerate(rows, start=1) if key else ():
        own = tuple(row[name] for name in key)
        if own in lines:
            told = ", ".join(f"{name} {value}" for name, value in zip(key, own, strict=True))
            raise ValueError(
                f"{path}, line {number} is a second row of {told}, which line {lines[own]} holds already: two processes wrote to "
                "this folder, or files were joined; measure again in another hydra.run.dir"
            )
        lines[own] = number
