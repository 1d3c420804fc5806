from dataclasses import replace

import numpy as np
import pytest
from simulation import record_of

from specresearch.controllers.lazy_prefill import LazyPrefillTime
from specresearch.metrics import StepRecord
from specresearch.metrics.times import StepTimes


def reading(num_tokens: int) -> StepRecord:
    """A step of a second, with two milliseconds and ten microseconds a token of reading."""
    times = StepTimes(
        0.0, 1.0, 0.0, 0.0, 1.0, lazy_prefill=2e-3 + 1e-5 * num_tokens if num_tokens else 0.0
    )
    return replace(record_of([1], [0], times), num_lazy_prefill_tokens=num_tokens)


def test_short_readings_do_not_make_long_ones_seem_slow() -> None:
    """Mostly seen by 25 tokens: of 800 tokens, in one row and in eight."""
    late = LazyPrefillTime(50.0)
    assert not late.is_known
    for number in range(40):
        num_tokens = 400 if number % 8 == 0 else 25
        late.observe(reading(num_tokens))
    assert late.is_known
    assert late.seconds(np.array([800])).sum() == pytest.approx(10e-3, rel=0.1)
    assert late.seconds(np.full(8, 100)).sum() == pytest.approx(10e-3, rel=0.1)


def test_who_has_nothing_to_read_takes_no_part() -> None:
    late = LazyPrefillTime(50.0)
    for num_tokens in (25, 400) * 10:
        late.observe(reading(num_tokens))
    one, nothing = late.seconds(np.array([100, 0]))
    assert one == pytest.approx(3e-3, rel=0.1)
    assert nothing == 0
    assert late.seconds(np.zeros(3, dtype=int)).tolist() == [0, 0, 0]


def test_measurements_wait_until_there_was_time_to_read() -> None:
    """27 milliseconds are 1% of 2.7 seconds; nothing may be read at any time."""
    late, tokens = LazyPrefillTime(50.0), np.array([2500])
    for num_tokens in (2500, 25) * 10:
        late.observe(reading(num_tokens))
    is_time = []
    for _ in range(4):
        late.observe(reading(0))
        is_time.append(late.allows_probe(tokens))
    assert is_time == [False, False, True, True]
    late.observe(reading(25))
    assert not late.allows_probe(tokens)
    assert late.allows_probe(np.zeros(2, dtype=int))
