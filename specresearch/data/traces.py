"""Recorded request traces: when requests came, how long their prompts were, and how long the answers.

Published by Azure (`TIMESTAMP, ContextTokens, GeneratedTokens`; Splitwise, Patel et al., arXiv 2311.18677) and by Mooncake
(`timestamp` in milliseconds, `input_length`, `output_length`; Qin et al., arXiv 2407.00079). Neither holds any text.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from specresearch.data.files import Record, find_file, read_records

MAX_TOKENS = 1_000_000  # a length above is a mistake in the trace
MAX_DISTANCE = 31 * 86400.0  # seconds from the median row; a time farther off is a mistake too
MAX_BAD_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TraceRow:
    """time: seconds after the first row. Lengths in tokens, both at least 1."""

    time: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True)
class Trace:
    """rows: in order of time. note: what was wrong with the file, "" if nothing. fingerprint: of the rows."""

    rows: tuple[TraceRow, ...]
    location: str
    format: str
    fingerprint: str
    num_skipped: int
    num_out_of_order: int
    note: str

    @property
    def seconds(self) -> float:
        return self.rows[-1].time

    @property
    def qps(self) -> float:
        return (len(self.rows) - 1) / self.seconds if self.seconds else math.inf


@dataclass(frozen=True)
class TraceFormat:
    """Names of the fields, and how a time is read, in seconds."""

    time: str
    prompt: str
    output: str
    seconds: Callable[[Any], float]


def _seconds_of_date(value: Any) -> float:
    moment = datetime.fromisoformat(str(value).strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds_of_milliseconds(value: Any) -> float:
    seconds = float(value) / 1000
    if seconds < 0:
        raise ValueError("is negative")
    return seconds


FORMATS: Mapping[str, TraceFormat] = {
    "azure": TraceFormat("TIMESTAMP", "ContextTokens", "GeneratedTokens", _seconds_of_date),
    "mooncake": TraceFormat("timestamp", "input_length", "output_length", _seconds_of_milliseconds),
}


def read_trace(path: str) -> Trace:
    """The trace in a file of one of `FORMATS`, told by its fields; CSV or JSON Lines, also gzipped.

    Rows that stand before an earlier one are put where they belong; rows with a time or a length that cannot be are skipped. Both
    are counted. Raises ValueError, with the row, when more than half are bad, and for a file that is no trace at all.
    """
    file = find_file(path, key="arrivals.path")
    name, found = "", list[tuple[str, TraceRow]]()
    bad: list[str] = []
    for number, record in enumerate(read_records(file)):
        if number == 0:
            name = _format_of(path, record)
        try:
            found.append((record.place, _row(record, FORMATS[name])))
        except ValueError as error:
            bad.append(f"{record.place}: {error}")
    middle = median(row.time for _, row in found) if found else 0.0
    far = [
        (place, abs(row.time - middle))
        for place, row in found
        if abs(row.time - middle) > MAX_DISTANCE
    ]
    bad += [
        f"{place}: it lies {distance / 86400:.0f} days from the median row"
        for place, distance in far
    ]
    rows = [row for _, row in found if abs(row.time - middle) <= MAX_DISTANCE]
    total = len(bad) + len(rows)
    if not rows or len(bad) > MAX_BAD_SHARE * total:
        why = (
            f"{len(bad)} of {total} rows cannot be used, the first is {bad[0]}"
            if bad
            else "it is empty"
        )
        raise ValueError(
            f"{path} is not a usable trace: {why}; correct the file or give another with arrivals.path="
        )
    late = sum(row.time < before.time for before, row in pairwise(rows))
    ordered = _from_zero(rows)
    notes = []
    if bad:
        notes.append(f"skipped {len(bad)} of {total} rows, the first is {bad[0]}")
    if late:
        notes.append(f"{late} rows stood before an earlier one and were sorted")
    return Trace(ordered, str(file), name, _fingerprint(ordered), len(bad), late, "; ".join(notes))


def _format_of(path: str, record: Record) -> str:
    for name, format in FORMATS.items():
        if {format.time, format.prompt, format.output} <= record.fields.keys():
            return name
    known = "; ".join(f"{name}: {f.time}, {f.prompt}, {f.output}" for name, f in FORMATS.items())
    raise ValueError(
        f"{path} has the fields {', '.join(record.fields) or 'of no row'}, which is no known trace; known are {known}"
    )


def _row(record: Record, format: TraceFormat) -> TraceRow:
    value = record.fields.get(format.time)
    try:
        seconds = format.seconds(value)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{format.time}={value!r} {error if str(error) == 'is negative' else 'is no time'}"
        ) from None
    if not math.isfinite(seconds):
        raise ValueError(f"{format.time}={value!r} is no time")
    lengths = [_length(name, record.fields.get(name)) for name in (format.prompt, format.output)]
    return TraceRow(seconds, *lengths)


def _length(name: str, value: Any) -> int:
    try:
        length = float(value)
    except (ValueError, TypeError):
        raise ValueError(f"{name}={value!r} is not a number") from None
    if not 1 <= length <= MAX_TOKENS or length != int(length):
        raise ValueError(f"{name}={value} is not a whole number of tokens from 1 to {MAX_TOKENS:,}")
    return int(length)


def _from_zero(rows: list[TraceRow]) -> tuple[TraceRow, ...]:
    ordered = sorted(rows, key=lambda row: row.time)
    first = ordered[0].time
    return tuple(
        TraceRow(row.time - first, row.num_prompt_tokens, row.num_output_tokens) for row in ordered
    )


def _fingerprint(rows: tuple[TraceRow, ...]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(f"{row.time:.6f},{row.num_prompt_tokens},{row.num_output_tokens}\n".encode())
    return digest.hexdigest()[:16]
