"""Parts fail alone, time runs out, and nothing that was measured is lost."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specresearch.device_bench.bench import Bench, BenchCase
from specresearch.device_bench.device import CpuDevice, _lengths
from specresearch.device_bench.measurement import Measurement, at_least, at_most
from specresearch.device_bench.report import Report
from specresearch.device_bench.runner import OUT_OF_TIME, Part, measure_all
from specresearch.device_bench.scale import REHEARSAL
from specresearch.device_bench.timing import compared, take_turns


def bench() -> Bench:
    return Bench(CpuDevice(), REHEARSAL)


def one() -> Iterator[Measurement]:
    yield Measurement.of("figure", [3.0, 1.0, 2.0], "ms", "by hand")


def fails() -> Iterator[Measurement]:
    yield from one()
    raise AttributeError("no such method\nand more")


def interrupted() -> Iterator[Measurement]:
    yield from one()
    raise KeyboardInterrupt


def part(name: str, *measures: object) -> Part:
    return Part(name, lambda _: iter([BenchCase(f"case {m}", m) for m in measures]), 0.5)  # type: ignore


def broken(_: Bench) -> Iterator[BenchCase]:
    raise MemoryError("the weights need 16 GB")
    yield


def run(parts: Sequence[Part], seconds: float = 60.0) -> tuple[list[Measurement], list[int]]:
    written: list[int] = []
    rows = measure_all(
        bench(),
        parts,
        seconds,
        write=lambda rows: written.append(len(rows)),
        say=lambda _: None,
    )
    return rows, written


def test_what_fails_is_a_row_and_the_rest_goes_on() -> None:
    rows, written = run([part("a", fails, one), Part("b", broken, 1.0), part("c", one)])
    assert [(row.part, row.value) for row in rows] == [
        ("a", 2.0),
        ("a", None),
        ("a", 2.0),
        ("b", None),
        ("c", 2.0),
    ]
    assert [row.reason for row in rows if row.value is None] == [
        "AttributeError: no such method",
        "the weights need 16 GB",
    ]
    assert written == [3, 4, 5]


def test_cases_are_chosen_by_what_their_names_contain() -> None:
    parts = [
        Part(name, lambda _: iter([BenchCase("a chain", one), BenchCase("a tree", one)]), 0.5)
        for name in ("first", "second")
    ]
    silent: dict[str, Any] = {"write": lambda _: None, "say": lambda _: None}
    rows = measure_all(bench(), parts, 60.0, **silent, containing=["tree", "bush"])
    assert [(row.part, row.case) for row in rows] == [("first", "a tree"), ("second", "a tree")]


def test_no_chosen_case_is_an_error_and_leaves_no_file() -> None:
    written: list[int] = []
    with pytest.raises(ValueError, match=r"'bush' or 'hedge'; these parts have: case .*one"):
        measure_all(
            bench(),
            [part("a", one)],
            60.0,
            write=lambda rows: written.append(len(rows)),
            say=lambda _: None,
            containing=["bush", "hedge"],
        )
    assert not written


def test_what_does_not_fit_the_time_is_named() -> None:
    rows, _ = run([part("a", one, one)], seconds=0.0)
    assert [row.reason for row in rows] == [OUT_OF_TIME] * 2


def test_profiles_come_last_and_stand_with_their_case() -> None:
    order: list[str] = []

    def profiled(name: str) -> list[Measurement]:
        order.append(f"profile of {name}")
        if name == "b":
            raise RuntimeError("no profiler")
        return [Measurement.of("kernels", 5.0, "", "counted")]

    def case_of(name: str) -> BenchCase:
        def measure() -> Iterator[Measurement]:
            order.append(name)
            yield from one()
            subject.profiles.append(partial(profiled, name))

        return BenchCase(name, measure)

    subject = bench()
    parts = [
        Part("p", lambda _: iter([case_of("a"), case_of("b")]), 0.5),
        Part("q", lambda _: iter([case_of("c")]), 0.5),
    ]
    rows = measure_all(subject, parts, 60.0, write=lambda _: None, say=lambda _: None)
    assert order == ["a", "b", "c", "profile of a", "profile of b", "profile of c"]
    assert [(row.case, row.value or row.reason) for row in rows] == [
        ("a", 2.0),
        ("a", 5.0),
        ("b", 2.0),
        ("b", "no profiler"),
        ("c", 2.0),
        ("c", 5.0),
    ]


def leaving(profile: Callable[[], list[Measurement]]) -> tuple[Bench, list[Part]]:
    subject = bench()

    def measure() -> Iterator[Measurement]:
        yield from one()
        subject.profiles.append(profile)

    return subject, [Part("p", lambda _: iter([BenchCase("a", measure)]), 1.0)]


def test_a_profile_that_does_not_fit_the_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, parts = leaving(list)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def say(_: str) -> None:
        now[0] += 59.0  # said before a case, and before a profile

    rows = measure_all(subject, parts, 60.0, write=lambda _: None, say=say)
    assert [row.value or row.reason for row in rows] == [2.0, OUT_OF_TIME]


def test_an_interrupted_profile_loses_nothing() -> None:
    def profile() -> list[Measurement]:
        raise KeyboardInterrupt

    subject, parts = leaving(profile)
    written: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        measure_all(
            subject, parts, 60.0, write=lambda rows: written.append(len(rows)), say=lambda _: None
        )
    assert written == [1, 1]


def test_an_interruption_loses_nothing() -> None:
    written: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        measure_all(
            bench(),
            [part("a", one, interrupted)],
            60.0,
            write=lambda rows: written.append(len(rows)),
            say=lambda _: None,
        )
    assert written == [2]


def test_a_side_that_fails_leaves_the_turns_to_the_others() -> None:
    calls: list[str] = []

    def other() -> float:
        calls.append("other")
        raise RuntimeError("out of memory")

    def own() -> float:
        calls.append("own")
        return 2.0

    turns = take_turns(bench(), {"own": own, "other": other}, repeats=3)
    assert turns.values == {"own": [2.0] * 3, "other": []}
    assert calls == ["own", "other", "own", "own", "own"]  # the first round warms up
    row = compared("ratio", turns, "own", "other", "in turns")
    assert (row.value, row.reason) == (None, "out of memory")


def test_sides_alternate_and_one_repeat_is_always_measured() -> None:
    calls: list[str] = []
    sides = {name: lambda name=name: float(len(calls.append(name) or name)) for name in "ab"}
    take_turns(bench(), sides, repeats=2)
    assert "".join(calls) == "abbaab"
    late = bench()
    late.deadline = time.monotonic() - 1
    assert take_turns(late, sides, repeats=5).values == {"a": [1.0], "b": [1.0]}


def test_a_figure_that_is_not_finite_is_none() -> None:
    row = Measurement.of("figure", [1.0, float("nan")], "ms", "by hand", at_least(1))
    assert (row.value, row.is_met) == (None, None)
    assert "no figure" in row.reason


def test_expectations() -> None:
    assert Measurement.of("figure", 3.0, "", "", at_least(3)).is_met
    assert not Measurement.of("figure", 3.0, "", "", at_most(2.9)).is_met


def test_overlapping_stretches_count_once() -> None:
    assert sum(_lengths([(0, 4), (1, 2), (3, 6), (8, 9)])) == 7


def test_a_measured_page_says_whether_expectations_are_met(tmp_path: Path) -> None:
    report = Report(tmp_path / "gpu", {"device": {"name": "GPU | 80GB"}}, is_rehearsal=False)
    met = Measurement.of("speed", [90.0, 110.0], "%", "by hand", at_least(95))
    report.write([met, Measurement("other", reason="no | API")])
    assert report.json.name.endswith("-gpu-80gb.json")
    table = report.markdown.read_text().splitlines()[-2:]
    assert table[0] == "|  |  | speed | 100 % | 90 to 110 | at least 95 % | yes | by hand |"
    assert table[1] == "|  |  | other | none |  |  |  | no / API |"
    rows = json.loads(report.json.read_text())["measurements"]
    assert [row["met"] for row in rows] == [True, None]
