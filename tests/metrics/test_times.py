import time

import pytest
import torch

from specresearch.metrics.times import StepClock, StepTimes


def test_clock_laps_add_up() -> None:
    clock = StepClock(torch.device("cpu"))
    for name in ("control", "propose", "verify", "accept", "commit", "propose"):
        clock.lap(name)
    times = clock.stop(prefill=0.25, schedule=0.5)
    assert (times.prefill, times.schedule) == (0.25, 0.5)
    assert 0 <= times.host <= times.total


def test_the_host_is_what_no_part_accounts_for() -> None:
    times = StepTimes(0.1, 0.2, 0.05, 0.05, 0.75, prefill=9.0, schedule=9.0, control=0.25)
    assert times.host == pytest.approx(0.1)
    assert times.work == 0.5


def test_what_is_skipped_is_no_part_of_the_step() -> None:
    clock = StepClock(torch.device("cpu"))
    clock.lap("propose")
    time.sleep(0.02)
    clock.skip()
    for name in ("propose", "verify", "accept", "commit"):
        clock.lap(name)
    times = clock.stop(catch_up=0.02)
    assert times.total < 0.02
    assert times.propose < 0.02
    assert times.catch_up == 0.02
