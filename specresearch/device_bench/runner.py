"""Measure part after part within the time that there is, and write what is known after each."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from specresearch.bench.full_collections import no_full_collections
from specresearch.device_bench import attention, correctness, decoding, roofline, speculation
from specresearch.device_bench.bench import Bench, BenchCase
from specresearch.device_bench.measurement import Measurement, reason_of
from specresearch.progress import duration

Add = Callable[[Measurement], None]
Say = Callable[[str], None]
PROFILE_SHARE = 0.05  # of the time
OUT_OF_TIME = "left out, since the time was over; raise --minutes, or choose parts by --only"


@dataclass(frozen=True)
class Part:
    """A part of the measurement.

    Attributes:
        share: Of the time; what a part leaves over goes to those behind it.
    """

    name: str
    cases: Callable[[Bench], Iterator[BenchCase]]
    share: float


PARTS = (
    Part("correctness", correctness.cases, 0.2),
    Part("roofline", roofline.cases, 0.05),
    Part("decoding", decoding.cases, 0.35),
    Part("speculation", speculation.cases, 0.3),
    Part("attention", attention.cases, 0.1),
)


def measure_all(
    bench: Bench,
    parts: Sequence[Part],
    seconds: float,
    write: Callable[[Sequence[Measurement]], None],
    say: Say,
    containing: Sequence[str] = ("",),
) -> list[Measurement]:
    """Measure parts in order.

    Args:
        seconds: For all of them, and for the profiles at the end; a case that has begun is
            finished.
        write: Called with all measurements so far, after every part and on an interruption.
        containing: Of each part, measure the cases whose name contains one of these.

    Raises:
        ValueError: If no case is left to measure.
    """
    known: list[str] = []
    rows: list[Measurement] = []
    late: list[_Profile] = []
    end = time.monotonic() + seconds
    parts_end = end - PROFILE_SHARE * seconds
    try:
        for number, part in enumerate(parts):
            shares = sum(later.share for later in parts[number:])
            begin = time.monotonic()
            part_end = begin + max(parts_end - begin, 0.0) * part.share / shares
            with no_full_collections():
                cases = _cases(bench, part, rows.append)
                known += [case.name for case in cases]
                cases = [case for case in cases if any(text in case.name for text in containing)]
                late += _measure(bench, cases, part.name, part_end, end, rows.append, say)
            bench.clean_up()
            if rows:
                write(rows)
        for profile in late:
            left = duration(max(end - time.monotonic(), 0.0))
            say(f"{profile.missing.part}: profile of {profile.missing.case}; {left} left")
            place = 1 + max(i for i, row in enumerate(rows) if profile.is_of_case(row))
            rows[place:place] = profile.measured(end)
            bench.clean_up()
        if late:
            write(rows)
    except KeyboardInterrupt:
        write(rows)
        raise
    if not rows:
        raise ValueError(
            f"no case's name contains {' or '.join(map(repr, containing))}; these parts have: "
            f"{'; '.join(known)}"
        )
    return rows


@dataclass(frozen=True)
class _Profile:
    """What a case leaves for the end.

    Attributes:
        missing: The row of its case if nothing is measured.
    """

    measure: Callable[[], Iterable[Measurement]]
    missing: Measurement

    def is_of_case(self, row: Measurement) -> bool:
        return (row.part, row.case) == (self.missing.part, self.missing.case)

    def measured(self, end: float) -> list[Measurement]:
        if time.monotonic() >= end:
            return [replace(self.missing, reason=OUT_OF_TIME)]
        return list(_rows(self.measure, self.missing))


def _cases(bench: Bench, part: Part, add: Add) -> list[BenchCase]:
    try:
        return list(part.cases(bench))
    except Exception as error:
        add(Measurement("remaining figures", part=part.name, reason=reason_of(error)))
        return []


def _measure(
    bench: Bench,
    cases: Sequence[BenchCase],
    part: str,
    part_end: float,
    end: float,
    add: Add,
    say: Say,
) -> list[_Profile]:
    """Add the measurements of a part; return what is left for the end."""
    late: list[_Profile] = []
    for number, case in enumerate(cases):
        missing = Measurement("remaining figures", part=part, case=case.name)
        now = time.monotonic()
        if now >= part_end:
            add(replace(missing, reason=OUT_OF_TIME))
            continue
        bench.deadline = now + (part_end - now) / (len(cases) - number)
        say(f"{part}: {case.name}; {duration(max(end - now, 0.0))} of the time limit left")
        for row in _rows(case.measure, missing):
            add(row)
        late += [_Profile(profile, missing) for profile in bench.profiles]
        bench.profiles.clear()
        bench.clean_up()
    return late


def _rows(
    measure: Callable[[], Iterable[Measurement]], missing: Measurement
) -> Iterator[Measurement]:
    """Yield the measurements of a case; what fails is a row that says why."""
    try:
        for row in measure():
            yield replace(row, part=missing.part, case=missing.case)
    except Exception as error:
        yield replace(missing, reason=reason_of(error))
