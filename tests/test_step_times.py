import pytest
import torch

from specresearch.step_times import StepClock, StepTimes


def test_clock_laps_add_up() -> None:
    clock = StepClock(torch.device("cpu"))
    for name in ("propose", "verify", "accept", "commit", "propose"):
        clock.lap(name)
    times = clock.stop(prefill=0.25, schedule=0.5)
    assert (times.prefill, times.schedule) == (0.25, 0.5)
    assert 0 <= times.host <= times.total


def test_the_host_is_what_no_part_accounts_for() -> None:
    assert StepTimes(0.1, 0.2, 0.05, 0.05, 0.5, prefill=9.0, schedule=9.0).host == pytest.approx(0.1)
