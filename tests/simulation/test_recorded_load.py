"""The load that simulations start from."""

import pytest

from specresearch.loadtest.arrivals import ClosedLoop, Poisson
from specresearch.simulation.recorded_load import RecordedArrivals, RecordedLoad

POISSON = {"_target_": "specresearch.loadtest.arrivals.Poisson", "qps": 3.0}
LOOP = {"_target_": "specresearch.loadtest.arrivals.ClosedLoop", "concurrency": 4}


def test_the_groups_of_a_run_are_a_closed_loop() -> None:
    load = RecordedLoad.of({"batch_size": 8}, 20)
    arrivals = RecordedArrivals().resolve(load)
    assert (type(arrivals), arrivals.concurrency, load.running(arrivals)) == (ClosedLoop, 8, 8)
    assert RecordedLoad.of({"batch_size": 8}, 3).max_running == 3


def test_a_load_test_is_repeated_as_it_was() -> None:
    load = RecordedLoad.of({"arrivals": POISSON, "max_running": 16}, 20)
    arrivals = RecordedArrivals().resolve(load)
    assert isinstance(arrivals, Poisson)
    assert (arrivals.qps, load.running(arrivals)) == (3.0, 16)
    assert load.changes(arrivals, 16) == []
    loop = RecordedLoad.of({"arrivals": LOOP, "max_running": 32}, 20)
    assert loop.max_running == 4  # more requests were never there


def test_another_rate_is_a_change_and_another_kind_is_an_error() -> None:
    load = RecordedLoad.of({"arrivals": POISSON, "max_running": 16}, 20)
    arrivals = RecordedArrivals(qps=5.0).resolve(load)
    assert load.changes(arrivals, 8) == [
        "poisson, 5 requests/s (recorded: poisson, 3 requests/s)",
        "up to 8 together (recorded: 16)",
    ]
    with pytest.raises(ValueError, match=r"concurrency=2: the recorded arrivals \(Poisson\) have"):
        RecordedArrivals(concurrency=2).resolve(load)


def test_a_larger_closed_loop_runs_together() -> None:
    load = RecordedLoad.of({"batch_size": 1}, 20)
    arrivals = RecordedArrivals(concurrency=6).resolve(load)
    assert load.running(arrivals) == 6
    assert load.running(Poisson(2.0)) == 1


def test_a_recording_made_in_code_says_no_load() -> None:
    with pytest.raises(ValueError, match="does not say under which load it was made"):
        RecordedLoad.of({}, 20)
