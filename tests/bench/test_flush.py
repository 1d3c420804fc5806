"""Figures are written now and then, and seldom where writing takes long."""

import pytest

from specresearch.bench.flush import LEAST_SECONDS, MOST_COST, Flush


@pytest.mark.parametrize("cost", [0.0, 2.0])
def test_writes_are_rare_enough(monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
    now, written = 1000.0, []

    def write() -> None:
        nonlocal now
        written.append(now)
        now += cost

    monkeypatch.setattr("time.monotonic", lambda: now)
    flush = Flush(write)
    flush()
    flush()
    assert len(written) == 1  # at once, and not again so soon
    now += max(LEAST_SECONDS, MOST_COST * cost) - 0.5
    flush()
    assert len(written) == 1
    now += 1.0
    flush()
    assert len(written) == 2
