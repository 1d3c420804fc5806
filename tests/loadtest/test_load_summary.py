import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from specresearch.loadtest.side import LoadSide
from specresearch.loadtest.summary import summarize_load
from tests.loadtest.load_rows import LIMITS, request, side


def spread(
    seed: int,
    name: str = "baseline",
    *,
    gap: float = 0.1,
    tail: float = 1.0,
    num: int = 60,
    **settings: object,
) -> list:
    """Requests of a closed loop of 4; a tenth of them takes `tail` times as long for a token."""
    rng = np.random.default_rng(seed)
    rows, free = [], [0.0] * 4
    for number in range(num):
        place = int(np.argmin(free))
        own = gap * rng.uniform(0.9, 1.1) * (tail if number % 10 == 0 else 1.0)
        rows.append(request(number, free[place], gap=own, side=name, **settings))  # type: ignore[arg-type]
        free[place] = rows[-1].finish
    return rows


def mixed(num: int, every: int, hurt: float) -> dict[str, LoadSide]:
    """Two classes that the method makes twice as fast, except every n-th creative request."""

    def slowed(name: str, number: int) -> float:
        return hurt if name == "method" and number % every == 0 else 1.0

    def rows(name: str, seed: int) -> list:
        gap = 0.05 if name == "method" else 0.1
        return spread(seed, name, category="structured", gap=gap, num=num) + [
            request(
                1000 + number,
                row.arrival,
                gap=row.tpot * slowed(name, number),
                side=name,
                category="creative",
            )
            for number, row in enumerate(spread(seed + 9, name, gap=gap, num=num))
        ]

    return {
        name: side(name, rows(name, seed), concurrency=8)
        for seed, name in enumerate(("baseline", "method"))
    }


def test_ratios_are_those_of_the_sides_and_lie_in_their_intervals() -> None:
    sides = {
        "baseline": side("baseline", spread(0), spread(1, repeat=1), concurrency=4),
        "method": side(
            "method",
            spread(2, "method", gap=0.05),
            spread(3, "method", gap=0.05, repeat=1),
            concurrency=4,
        ),
        "fixed-2": side("fixed-2", spread(4, "fixed-2", gap=0.04), concurrency=4),
        "fixed-8": side("fixed-8", spread(5, "fixed-8", gap=0.2), concurrency=4),
    }
    figures = summarize_load(sides, LIMITS, 8)
    summary = figures.summary
    per_request = {
        name: 0.5 + 10 * gap
        for name, gap in (("baseline", 0.1), ("method", 0.05), ("fixed-2", 0.04))
    }
    assert summary["speedup"] == pytest.approx(
        per_request["baseline"] / per_request["method"], rel=0.05
    )
    assert summary["best_fixed"] == "fixed-2"
    assert summary["worst_fixed"] == "fixed-8"
    assert summary["speedup_worst_fixed"] < 1 < summary["speedup_best_fixed"]
    assert summary["speedup_over_best"] == pytest.approx(
        per_request["fixed-2"] / per_request["method"], rel=0.05
    )
    assert summary["tpot_p50_ratio"] == pytest.approx(0.5, rel=0.05)
    for name, (low, high) in figures.intervals.items():
        assert low <= summary[name] * 1.001
        assert summary[name] <= high * 1.001
    assert figures.intervals["speedup"][0] > 1
    json.dumps(asdict(figures))


def test_an_interval_covers_no_difference_when_there_is_none() -> None:
    sides = {
        name: side(name, spread(seed, name), concurrency=4)
        for seed, name in enumerate(("baseline", "method"))
    }
    figures = summarize_load(sides, LIMITS, 8)
    low, high = figures.intervals["speedup"]
    assert low <= 1 <= high


def test_a_better_median_with_a_worse_tail_is_called_out_by_class() -> None:
    figures = summarize_load(mixed(800, 10, 5.0), LIMITS, 8)
    assert (figures.class_signature, figures.class_unclear) == (["creative"], [])
    assert (
        figures.classes["creative"]["method"]["tpot_p50"]
        < figures.classes["creative"]["baseline"]["tpot_p50"]
    )
    assert (
        figures.classes["creative"]["method"]["tpot_p99"]
        > figures.classes["creative"]["baseline"]["tpot_p99"]
    )
    assert set(figures.classes) == {"structured", "creative"}


@pytest.mark.parametrize(("num", "every"), [(60, 10), (160, 60)])
def test_a_tail_that_may_be_chance_is_not_called_out(num: int, every: int) -> None:
    """Too few requests for a 99th percentile, or one that depends on only two of them."""
    figures = summarize_load(mixed(num, every, 5.0), LIMITS, 8)
    own, plain = (figures.classes["creative"][name] for name in ("method", "baseline"))
    assert own["tpot_p50"] < 0.6 * plain["tpot_p50"]
    assert own["tpot_p99"] > 1.2 * plain["tpot_p99"]
    assert figures.class_signature == []
    assert "creative" in figures.class_unclear


def test_acceptance_shows_the_slowest_tenth_beside_the_mean() -> None:
    rows = [
        request(n, float(n), side="method", drafts=(1, 20) if n % 5 == 0 else (19, 20))
        for n in range(40)
    ]
    figures = side("method", rows).figures(8)[0]
    assert figures["draft_acceptance_rate"] > 0.7
    assert figures["acceptance_p10"] == pytest.approx(0.05)
    assert figures["mean_draft_length"] == pytest.approx(20 / 6)


def test_a_side_that_falls_behind_says_so_and_one_that_keeps_up_does_not() -> None:
    keeps_up = [request(n, 0.2 * n) for n in range(50)]
    late = [request(n, 0.2 * n, ttft=0.5 + 0.3 * n, queue_time=0.3 * n) for n in range(50)]
    assert side("baseline", keeps_up).figures(4)[0]["overloaded"] is False
    for max_running in (4, 32):
        assert side("baseline", late).figures(max_running)[0]["overloaded"] is True
    assert side("baseline", late, concurrency=4).figures(4)[0]["overloaded"] is False
    given_up = side(
        "baseline", keeps_up, stopped="the queue grows without bound: ...", num_waiting=9
    )
    assert given_up.figures(4)[0]["overloaded"] is True
    stopped = summarize_load({"baseline": given_up}, LIMITS, 4).stopped
    assert stopped == "baseline, repeat 0: the queue grows without bound: ..."


def served(arrivals: np.ndarray, num_slots: int, seconds: float = 2.0) -> list:
    """First come, first served, so many at a time; each takes `seconds`."""
    free, rows = np.zeros(num_slots), []
    for number, arrival in enumerate(arrivals.tolist()):
        place = int(np.argmin(free))
        queue_time = max(float(free[place]) - arrival, 0.0)
        rows.append(
            request(
                number,
                arrival,
                gap=(seconds - 0.5) / 10,
                ttft=0.5 + queue_time,
                queue_time=queue_time,
            )
        )
        free[place] = rows[-1].finish
    return rows


@pytest.mark.parametrize("rate", [1.5, 2.0, 4.0])
def test_a_rate_beyond_what_can_be_served_is_seen_where_fewer_wait_than_may_run(
    rate: float,
) -> None:
    """Thirty-two at a time, 16 a second; of 64 requests no more than 32 can ever wait."""
    rows = served(np.arange(64) / (16 * rate), 32)
    assert side("baseline", rows).figures(32)[0]["overloaded"] is True


@pytest.mark.parametrize("burst", [8, 24])
@pytest.mark.parametrize("begin", [0.2, 0.5, 0.9])
def test_a_short_burst_is_no_overload(begin: float, burst: int) -> None:
    """Four a second where eight can be served, and so many more at one moment."""
    steady = np.arange(64) / 4
    arrivals = np.sort(np.concatenate([steady, np.full(burst, begin * steady[-1])]))
    rows = served(arrivals, 16)
    assert max(row.queue_time for row in rows) > 0.5 or burst == 8
    assert side("baseline", rows).figures(16)[0]["overloaded"] is False


@pytest.mark.parametrize(("rate", "is_short"), [(40, True), (4, False)])
def test_a_burst_that_ends_before_most_are_answered_is_no_measure_of_rates(
    rate: int, is_short: bool
) -> None:
    """Requests of a second and a half, which come in the course of half a second, or of six."""
    rows = [request(number, number / rate) for number in range(24)]
    assert side("baseline", rows).figures(32)[0]["too_short"] is is_short
    assert side("baseline", rows, concurrency=8).figures(32)[0]["too_short"] is False


def test_a_long_wait_alone_does_not_make_a_pass_too_short() -> None:
    """Most requests wait for longer than the ten seconds of arrivals; rates are still steady."""
    rows = served(np.arange(0, 10, 0.05), 8)
    assert np.median([row.e2el for row in rows]) > 10
    figures = side("baseline", rows).figures(8)[0]
    assert (figures["overloaded"], figures["too_short"]) == (True, False)


def test_without_a_method_or_a_middle_figures_are_none() -> None:
    figures = summarize_load({"baseline": side("baseline", spread(0), concurrency=4)}, LIMITS, 8)
    assert figures.summary["speedup"] is None
    assert figures.summary["throughput"] == figures.summary["baseline_throughput"] > 0
    empty = summarize_load(
        {"baseline": side("baseline", spread(0, num=4), concurrency=4)}, LIMITS, 8
    )
    assert empty.summary["throughput"] is None
    assert empty.intervals == {}


@pytest.mark.parametrize("reset", [True, False])
def test_a_controller_that_remembers_is_reported_pass_by_pass(reset: bool) -> None:
    """Its trace of later passes repeats that of the earlier ones."""
    passes = [[100.0, 150.0], [100.0, 150.0] if reset else [100.0, 200.0, 260.0]]
    own = side(
        "method", [request(0, 0.0, side="method")], [request(0, 0.0, side="method", repeat=1)]
    )
    rows = {}
    for repeat, steps in enumerate(passes):
        rows[repeat] = replace(own.passes[repeat], trace=tuple({"step": step} for step in steps))
    sides = {"method": replace(own, passes=rows)}
    trace = summarize_load(sides, LIMITS, 8, reset=reset).controller["method"]
    assert [(row["repeat"], row["step"]) for row in trace] == [
        (0.0, 100.0),
        (0.0, 150.0),
        *((1.0, step) for step in ([100.0, 150.0] if reset else [200.0, 260.0])),
    ]
