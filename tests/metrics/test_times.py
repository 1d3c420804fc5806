import pytest

from specresearch.metrics.times import StepTimes


def test_laps_become_the_times_of_a_step() -> None:
    laps = {
        "schedule": 0.5,
        "prefill": 0.25,
        "draft_prefill": 0.125,
        "lazy_prefill": 0.5,
        "control": 0.25,
        "propose": 0.25,
        "verify": 0.5,
        "accept": 0.125,
        "commit": 0.125,
    }
    times = StepTimes.of(laps, elapsed=2.0)
    assert times.total == 1.5  # lazy prefill is no part of the step
    assert (times.prefill, times.lazy_prefill, times.draft_prefill) == (0.75, 0.5, 0.625)
    assert (times.schedule, times.control) == (0.5, 0.25)
    assert times.host == 0.25


def test_missing_laps_took_no_time() -> None:
    assert StepTimes.of({"verify": 1.0}, elapsed=1.0) == StepTimes(0.0, 1.0, 0.0, 0.0, 1.0)


def test_host_is_the_time_that_no_part_accounts_for() -> None:
    times = StepTimes(0.1, 0.2, 0.05, 0.05, 0.75, prefill=9.0, schedule=9.0, control=0.25)
    assert times.host == pytest.approx(0.1)
    assert times.work == 0.5
