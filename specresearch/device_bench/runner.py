"""Measure part after part within the time that there is, and write what is known after each."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from specresearch.bench.full_collections import no_full_collections
from specresearch.device_bench import attention, correctness, decoding, roofline, speculation
from specresearch.device_bench.bench import Bench, BenchCase
from specresearch.device_bench.measurement import Measurement, reason_of
from specresearch.progress import duration

Add = Callable[[Measurement], None]
Say = Callable[[str], None]
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
) -> list[Measurement]:
    """Measure parts in order.

    Args:
        seconds: For all of them; a case that has begun is finished.
        write: Called with all measurements so far, after every part and on an interruption.
    """
    rows: list[Measurement] = []
    end = time.monotonic() + seconds
    try:
        for number, part in enumerate(parts):
            shares = sum(later.share for later in parts[number:])
            begin = time.monotonic()
            part_end = begin + max(end - begin, 0.0) * part.share / shares
            with no_full_collections():
                _measure(bench, part, part_end, end, rows.append, say)
            bench.clean_up()
            write(rows)
    except KeyboardInterrupt:
        write(rows)
        raise
    return rows


def _measure(bench: Bench, part: Part, part_end: float, end: float, add: Add, say: Say) -> None:
    """Add the measurements of a part; what fails is a row that says why."""
    try:
        cases = list(part.cases(bench))
    except Exception as error:
        add(Measurement("remaining figures", part=part.name, reason=reason_of(error)))
        return
    for number, case in enumerate(cases):
        missing = Measurement("remaining figures", part=part.name, case=case.name)
        now = time.monotonic()
        if now >= part_end:
            add(replace(missing, reason=OUT_OF_TIME))
            continue
        bench.deadline = now + (part_end - now) / (len(cases) - number)
        say(f"{part.name}: {case.name}; {duration(max(end - now, 0.0))} of the time limit left")
        try:
            for row in case.measure():
                add(replace(row, part=part.name, case=case.name))
        except Exception as error:
            add(replace(missing, reason=reason_of(error)))
        bench.clean_up()
