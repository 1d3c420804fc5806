"""Published request traces: arrival times, prompt lengths and output lengths, without any text.

Azure has `TIMESTAMP, ContextTokens, GeneratedTokens` (Splitwise, Patel et al., arXiv 2311.18677),
Mooncake `timestamp` in milliseconds, `input_length`, `output_length` (Qin et al., arXiv
2407.00079).
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from specresearch.data.files import Record, find_file, read_records

MAX_TOKENS = 1_000_000  # a longer request is a mistake in the trace
MAX_DISTANCE = 31 * 86400.0  # seconds from the median row; a time farther off is a mistake
MAX_BAD_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace.

    Attributes:
        time: Seconds after the first row.
        num_prompt_tokens: At least 1.
        num_output_tokens: At least 1.
    """

    time: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True)
class RequestTrace:
    """The requests of one file, in order of time.

    Attributes:
        format: One of `FORMATS`.
        fingerprint: 16 hexadecimal digits of SHA-256 over the rows.
        num_skipped: Rows with an impossible time or length.
        num_out_of_order: Rows that came after a later one in the file.
        note: What was wrong with the file, "" if nothing was.
    """

    rows: tuple[TraceRow, ...]
    location: str
    format: str
    fingerprint: str
    num_skipped: int
    num_out_of_order: int
    note: str

    @property
    def seconds(self) -> float:
        """The time between the first and the last request."""
        return self.rows[-1].time

    @property
    def qps(self) -> float:
        """Requests per second."""
        return (len(self.rows) - 1) / self.seconds if self.seconds else math.inf


@dataclass(frozen=True)
class TraceFormat:
    """The field names of a published trace.

    Attributes:
        seconds: Converts the value of the time field.
    """

    time: str
    prompt: str
    output: str
    seconds: Callable[[Any], float]


def _date_to_seconds(value: Any) -> float:
    moment = datetime.fromisoformat(str(value).strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp()


def _milliseconds_to_seconds(value: Any) -> float:
    seconds = float(value) / 1000
    if seconds < 0:
        raise ValueError("a time counts from the start of the trace")
    return seconds


FORMATS: Mapping[str, TraceFormat] = {
    "azure": TraceFormat("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_to_seconds),
    "mooncake": TraceFormat("timestamp", "input_length", "output_length", _milliseconds_to_seconds),
}


def read_trace(path: str) -> RequestTrace:
    """Read a CSV or JSON Lines file of one of `FORMATS`, which is recognised by its fields.

    Out-of-order rows are sorted, and rows with an impossible time or length are skipped; both are
    counted. The file may be gzipped.

    Raises:
        ValueError: If the file is not a trace, or more than half of its rows are bad; the message
            names the first bad row.
    """
    file = find_file(path, key="arrivals.path")
    format = ""
    parsed: list[tuple[str, TraceRow]] = []
    errors: list[str] = []
    for number, record in enumerate(read_records(file)):
        if number == 0:
            format = _recognise_format(path, record)
        try:
            parsed.append((record.location, _parse(record, FORMATS[format])))
        except ValueError as error:
            errors.append(f"{record.location}: {error}")
    rows = _drop_far_rows(parsed, errors)
    total = len(errors) + len(rows)
    if not rows or len(errors) > MAX_BAD_SHARE * total:
        reason = "it is empty"
        if errors:
            reason = f"{len(errors)} of {total} rows cannot be used, the first is {errors[0]}"
        raise ValueError(
            f"{path} is not a usable trace: {reason}; "
            "correct the file or give another with arrivals.path="
        )
    num_out_of_order = sum(row.time < before.time for before, row in pairwise(rows))
    ordered = _sort_from_zero(rows)
    notes = []
    if errors:
        notes.append(f"skipped {len(errors)} of {total} rows, the first is {errors[0]}")
    if num_out_of_order:
        notes.append(f"{num_out_of_order} rows came after a later one and were sorted")
    return RequestTrace(
        rows=ordered,
        location=str(file),
        format=format,
        fingerprint=_fingerprint(ordered),
        num_skipped=len(errors),
        num_out_of_order=num_out_of_order,
        note="; ".join(notes),
    )


def _recognise_format(path: str, record: Record) -> str:
    for name, format in FORMATS.items():
        if {format.time, format.prompt, format.output} <= record.fields.keys():
            return name
    known = []
    for name, format in FORMATS.items():
        known.append(f"{name}: {format.time}, {format.prompt}, {format.output}")
    raise ValueError(
        f"{path} is not a known trace: its fields are {', '.join(record.fields) or 'none'}; "
        f"known are {'; '.join(known)}"
    )


def _parse(record: Record, format: TraceFormat) -> TraceRow:
    value = record.fields.get(format.time)
    try:
        seconds = format.seconds(value)
    except (ValueError, TypeError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{format.time}={value!r} is not a time")
    return TraceRow(
        time=seconds,
        num_prompt_tokens=_parse_length(record, format.prompt),
        num_output_tokens=_parse_length(record, format.output),
    )


def _parse_length(record: Record, name: str) -> int:
    value = record.fields.get(name)
    try:
        length = float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise ValueError(f"{name}={value!r} is not a number") from None
    if not 1 <= length <= MAX_TOKENS or length != int(length):
        raise ValueError(f"{name}={value} is not a whole number of tokens from 1 to {MAX_TOKENS:,}")
    return int(length)


def _drop_far_rows(parsed: Sequence[tuple[str, TraceRow]], errors: list[str]) -> list[TraceRow]:
    """Return the rows within `MAX_DISTANCE` of the median one; report the others in `errors`."""
    if not parsed:
        return []
    middle = median(row.time for _, row in parsed)
    rows = []
    for location, row in parsed:
        distance = abs(row.time - middle)
        if distance <= MAX_DISTANCE:
            rows.append(row)
        else:
            days = distance / 86400
            errors.append(f"{location}: it lies {days:.0f} days from the median row")
    return rows


def _sort_from_zero(rows: Sequence[TraceRow]) -> tuple[TraceRow, ...]:
    ordered = sorted(rows, key=lambda row: row.time)
    first = ordered[0].time
    return tuple(
        TraceRow(row.time - first, row.num_prompt_tokens, row.num_output_tokens) for row in ordered
    )


def _fingerprint(rows: Sequence[TraceRow]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(f"{row.time:.6f},{row.num_prompt_tokens},{row.num_output_tokens}\n".encode())
    return digest.hexdigest()[:16]
