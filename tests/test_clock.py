from typing import Any

import pytest
import torch

from specresearch.clock import Clock, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_paused_clock_does_not_advance(clock: ManualClock) -> None:
    clock.advance(1.0)
    with clock.paused():
        clock.advance(10.0)
        assert clock.now() == 1.0
        with clock.paused():
            clock.advance(10.0)
        clock.advance(10.0)
        assert clock.now() == 1.0
    assert clock.now() == 1.0
    clock.advance(0.5)
    assert clock.now() == 1.5


def test_a_clock_runs_again_after_an_error(clock: ManualClock) -> None:
    with pytest.raises(ArithmeticError), clock.paused():
        raise ArithmeticError
    clock.advance(1.0)
    assert clock.now() == 1.0


def test_laps_of_one_name_add_up_and_may_nest(clock: ManualClock) -> None:
    with clock.lap("outer"):
        clock.advance(1.0)
        with clock.lap("inner"):
            clock.advance(2.0)
    with clock.lap("inner") as lap:
        clock.advance(4.0)
    assert lap.seconds == 4.0
    assert clock.pop_laps() == {"outer": 3.0, "inner": 6.0}
    assert clock.pop_laps() == {}


def test_a_lap_does_not_count_pauses(clock: ManualClock) -> None:
    with clock.lap("work"):
        clock.advance(1.0)
        with clock.paused():
            clock.advance(5.0)
    assert clock.pop_laps() == {"work": 1.0}


def test_a_lap_on_a_gpu_does_not_count_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that does its work at once."""
    seconds = 0.0

    class Event:
        at = 0.0

        def __init__(self, **_: Any) -> None: ...
        def query(self) -> bool:
            return True

        def record(self, stream: object) -> None:
            self.at = seconds

        def elapsed_time(self, end: "Event") -> float:
            return (end.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    clock = Clock(torch.device("cuda"))
    with clock.lap("outer"):
        seconds += 1.0
        with clock.lap("inner"):
            seconds += 2.0
            with clock.paused():
                seconds += 5.0
                with clock.paused():
                    seconds += 5.0
            seconds += 4.0
    with clock.paused():
        seconds += 5.0
    assert clock.pop_laps() == {"outer": 7.0, "inner": 6.0}


def test_a_discarded_lap_is_not_counted(clock: ManualClock) -> None:
    with clock.lap("work") as lap:
        clock.advance(1.0)
    clock.discard(lap)
    assert clock.pop_laps() == {}


def test_sleeping_takes_time(clock: ManualClock) -> None:
    clock.sleep(2.0)
    clock.sleep(-1.0)
    assert clock.now() == 2.0


def test_the_real_clock_goes_forward() -> None:
    clock = Clock()
    first = clock.now()
    with clock.lap("work") as lap:
        sum(range(1000))
    assert clock.now() > first
    assert 0 < lap.seconds <= clock.now() - first
