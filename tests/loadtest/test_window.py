import numpy as np
import pytest

from specresearch.loadtest.steps import PassSteps
from specresearch.loadtest.window import LatencyLimits, Window, token_times
from specresearch.statistics import interval_of
from tests.loadtest.load_rows import LIMITS, finished, request


def test_open_arrivals_lose_their_first_tenth_and_what_comes_after_the_last_arrival() -> None:
    rows = [request(number, float(number)) for number in range(11)]
    window = Window.of(finished(rows), rows, None, LIMITS)
    assert window is not None
    assert (window.begin, window.end) == (1.0, 10.0)
    assert [row.id for row in window.rows] == [str(n) for n in range(1, 11)]
    delivered = np.concatenate([token_times(row) for row in rows])
    assert window.blocks[:, 0].sum() == ((delivered >= 1.0) & (delivered <= 10.0)).sum()
    assert window.blocks[:, 3].sum() == pytest.approx(9.0)


def test_a_closed_loop_counts_what_ended_between_its_first_wave_and_its_last_request() -> None:
    rows = [request(n, 1.5 * (n // 2)) for n in range(8)]  # two at a time, each takes 1.5 s
    window = Window.of(finished(rows), rows, 2, LIMITS)
    assert window is not None
    assert (window.begin, window.end) == (1.5, 4.5)
    assert [row.id for row in window.rows] == ["2", "3", "4", "5"]
    assert window.blocks[:, 1].sum() == 4
    assert window.blocks[:, 0].sum() == sum(len(row.itl) + 1 for row in window.rows)


def test_a_closed_loop_in_lockstep_counts_each_wave_once() -> None:
    """Two requests at a time, three tokens each, half a second a step that ends a bit late."""
    rows = [request(n, 1.5 * (n // 2), ttft=0.5, gap=0.5, num_tokens=3) for n in range(8)]
    start, ones = 0.5 * np.arange(12), np.ones(12)
    steps = PassSteps(start, 0.500001 * ones, 0 * ones, 2 * ones, 0 * ones, 0 * ones, 2 * ones, 0.0)
    window = Window.of(finished(rows), rows, 2, LIMITS, steps)
    assert window is not None
    assert window.blocks[:, 0].sum() / window.seconds == pytest.approx(4.0, rel=0.2)
    assert steps.sum_over("running", window.begin, window.end) / window.seconds == pytest.approx(
        2.0, rel=1e-3
    )


def test_of_a_step_only_what_lies_within_the_window_counts() -> None:
    """Two requests run for a second, four for three seconds, none for two, and one for one."""
    start, ones = np.array([0.0, 1.0, 6.0]), np.ones(3)
    steps = PassSteps(
        start, np.array([1.0, 3.0, 1.0]), 0 * ones, np.array([2.0, 4.0, 1.0]), ones, ones, ones, 0.0
    )
    assert steps.sum_over("running", 0.5, 6.5) == pytest.approx(0.5 * 2 + 3 * 4 + 0.5 * 1)
    assert steps.sum_over("running", 2.0, 3.0) == pytest.approx(4.0)
    assert steps.sum_over("running", 4.5, 5.5) == 0.0


def test_tokens_of_requests_that_a_stopped_pass_left_unfinished_count() -> None:
    rows = [request(0, 0.0), request(1, 10.0)]
    start, ones = np.arange(0.0, 20.0, 0.5), np.ones(40)
    steps = PassSteps(start, 0.4 * ones, ones, ones, 0 * ones, 0 * ones, 3 * ones, 0.0)
    window = Window.of(finished(rows), rows, None, LIMITS, steps)
    assert window is not None
    assert window.blocks[:, 0].sum() == 3 * ((start + 0.4 >= 1.0) & (start + 0.4 <= 10.0)).sum()


def test_a_pass_without_a_middle_has_no_window() -> None:
    rows = [request(n, 0.0) for n in range(2)]
    assert Window.of(finished(rows), rows, 2, LIMITS) is None
    assert Window.of(finished(rows), rows, 3, LIMITS) is None
    assert Window.of(finished(rows[:1]), rows[:1], None, LIMITS) is None


def test_goodput_counts_requests_within_both_limits() -> None:
    late, slow = request(5, 5.0, ttft=1.1), request(6, 6.0, gap=0.11)
    rows = [request(number, float(number)) for number in range(11) if number not in (5, 6)] + [
        late,
        slow,
    ]
    window = Window.of(finished(rows), rows, None, LIMITS)
    assert window is not None
    assert window.blocks[:, 1].sum() == 9  # of eleven, two end behind the window
    assert window.blocks[:, 2].sum() == 7
    with pytest.raises(ValueError, match=r"limits\.ttft=0\.0 must be above 0"):
        LatencyLimits(0.0, 1.0)


@pytest.mark.parametrize("concurrency", [None, 2])
def test_goodput_is_part_of_the_throughput_however_late_requests_end(
    concurrency: int | None,
) -> None:
    """All within the limits, and answered long after the window in which they came."""
    rows = [request(number, 0.1 * number, gap=0.09, num_tokens=200) for number in range(40)]
    window = Window.of(finished(rows), rows, concurrency, LIMITS)
    if concurrency is None:
        assert window is not None
        assert len(window.rows) == 36
        assert window.blocks[:, 1].sum() == 0
    assert window is None or (window.blocks[:, 2] <= window.blocks[:, 1]).all()


def test_few_requests_are_few_observations_of_a_rate() -> None:
    rows = [request(n, 1.5 * (n // 2)) for n in range(8)]
    for concurrency, num_blocks in ((None, 7), (2, 4)):
        window = Window.of(finished(rows), rows, concurrency, LIMITS)
        assert window is not None
        assert len(window.blocks) == num_blocks
        assert interval_of(window.blocks, lambda t: t[..., 0] / t[..., 3], slow=5) is None
