"""A measurement on cores that others use is told which number of threads to try."""

import logging
import os

import pytest
import torch

from specresearch.cli import busy
from specresearch.cli.busy import CoreTimes, warn_of_busy_cores


@pytest.fixture
def warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """Pretend that this process started ten seconds ago on two cores, and uses both."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(busy, "_START", CoreTimes(os.getpid(), 100.0, 1.0, 0.0))
    caplog.set_level(logging.WARNING)
    return caplog


def pretend(
    monkeypatch: pytest.MonkeyPatch, *, busy_seconds: float, pid: int | None = None
) -> None:
    now = CoreTimes(os.getpid() if pid is None else pid, 100.0 + busy_seconds, 6.0, 10.0)
    monkeypatch.setattr(CoreTimes, "read", staticmethod(lambda: now))


def test_work_of_others_is_named(
    monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, busy_seconds=5.0 + 9.0)
    warn_of_busy_cores()
    assert "other processes use 0.9 of 2 cores" in warned.text
    assert "OMP_NUM_THREADS=1 " in warned.text


def test_own_work_is_no_reason(
    monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, busy_seconds=5.0 + 1.0)
    warn_of_busy_cores()
    pretend(monkeypatch, busy_seconds=14.0, pid=1)  # a process that another one forked
    warn_of_busy_cores()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    pretend(monkeypatch, busy_seconds=14.0)
    warn_of_busy_cores()
    assert not warned.records


def test_times_of_this_machine() -> None:
    before, after = CoreTimes.read(), CoreTimes.read()
    if before is None or after is None:
        pytest.skip("the system does not tell")
    assert after.busy >= before.busy > 0
    assert after.used_by_others(CoreTimes(before.pid, before.busy, before.own, before.now - 1)) >= 0
