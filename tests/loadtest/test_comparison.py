"""Ratios of two sides of a load test that decoded the same requests."""

import numpy as np
import pytest

from specresearch.bench.estimate import Estimate
from specresearch.loadtest.comparison import PairedSides, _has_signature
from specresearch.rows import RequestRow
from tests.loadtest.load_rows import request, side

NUM_RUNS, NUM_STRETCHES, AT_ONCE = 60, 10, 12


def rows_of(name: str, seconds: np.ndarray) -> list[RequestRow]:
    """Evenly spaced arrivals; `seconds` to the first token, and 1 s to the last."""
    return [request(n, float(n), ttft=float(value), side=name) for n, value in enumerate(seconds)]


def test_requests_that_share_a_queue_are_no_independent_units() -> None:
    """Two equally fast sides slow down at different times: a 95% interval rarely misses 1."""
    rng, missed, by_request = np.random.default_rng(0), 0, 0
    for _ in range(NUM_RUNS):
        queued = [
            np.repeat(rng.gamma(2.0, 2.0, NUM_STRETCHES + 1), AT_ONCE)[: NUM_STRETCHES * AT_ONCE]
            for _ in range(2)
        ]
        own, plain = (
            side(name, rows_of(name, seconds))
            for name, seconds in zip(("method", "baseline"), queued, strict=True)
        )
        ratio = PairedSides(own, plain).latency_ratio()
        assert ratio is not None
        missed += ratio.is_above(1.0) or ratio.is_below(1.0)
        drawn = rng.integers(len(queued[0]), size=(400, len(queued[0])))
        low, high = np.quantile(
            (queued[1] + 1)[drawn].mean(1) / (queued[0] + 1)[drawn].mean(1), [0.025, 0.975]
        )
        by_request += not low <= 1.0 <= high
    assert missed < 0.15 * NUM_RUNS  # chance leaves a 5% more than that once in a thousand times
    assert by_request > 0.5 * NUM_RUNS  # what requests as units say


def test_only_what_both_answered_is_compared() -> None:
    own = side("method", rows_of("method", np.full(40, 1.0)))
    plain = side(
        "baseline", [row for row in rows_of("baseline", np.full(40, 3.0)) if row.id != "20"]
    )
    ratio = PairedSides(own, plain).latency_ratio()
    assert ratio is not None
    assert (ratio.value, ratio.low) == (pytest.approx(2.0), pytest.approx(2.0))
    short = side("baseline", rows_of("baseline", np.full(1, 3.0)))
    assert PairedSides(own, short).latency_ratio() is None


def test_one_burst_has_no_interval() -> None:
    arrivals = np.r_[np.linspace(9.0, 9.05, 20), 10.0]
    sides = [
        side(
            name,
            [request(n, float(at), ttft=ttft, side=name) for n, at in enumerate(arrivals[:-1])],
        )
        for name, ttft in (("method", 1.0), ("baseline", 2.0))
    ]
    ratio = PairedSides(*sides).latency_ratio()
    assert ratio is not None
    assert ratio.value == pytest.approx(1.5)
    assert not ratio.has_interval


def test_a_queue_that_never_empties_is_one_stretch() -> None:
    """Requests take as long as the whole pass: whoever came later waits for all before."""
    rng = np.random.default_rng(0)
    waits = np.arange(40) * 0.9
    sides = [
        side(name, rows_of(name, waits * factor + rng.random(40)))
        for name, factor in (("method", 1.04), ("baseline", 1.0))
    ]
    ratio = PairedSides(*sides).latency_ratio()
    assert ratio is not None
    assert ratio.value == pytest.approx(0.96, abs=0.01)
    assert not ratio.has_interval


@pytest.mark.parametrize("num", [60, 800])
def test_a_class_pays_only_where_its_tail_was_measured(num: int) -> None:
    """One in ten of `b` is slow with the method, the rest fast; `a` is as it was."""
    sides = [
        side(
            name,
            [
                request(n, float(n), gap=gap(n), side=name, category="ab"[n % 2])
                for n in range(2 * num)
            ],
        )
        for name, gap in (
            ("method", lambda n: 0.3 if n % 20 == 1 else 0.08 if n % 2 else 0.1),
            ("baseline", lambda n: 0.1),
        )
    ]
    pair = PairedSides(*sides)
    same = pair.class_change("a")
    assert [ratio and ratio.value for ratio in (same.median, same.slowest)] == [
        pytest.approx(1.0)
    ] * 2
    change = pair.class_change("b")
    assert change.median is not None
    assert change.slowest is not None
    assert change.median.is_below(1.0)
    assert change.slowest.value == pytest.approx(3.0)
    assert change.slowest.is_above(1.0) == (num > 400)
    assert change.has_signature is (True if num > 400 else None)
    assert _has_signature(Estimate(1.1, 1.0, 1.2), Estimate(1.1, 0.9, 1.2)) is False
    unknown = pair.class_change("c")
    assert (unknown.median, unknown.slowest, unknown.has_signature) == (None, None, None)
