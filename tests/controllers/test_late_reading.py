import numpy as np
import pytest

from specresearch.controllers.late_reading import LateReading


def test_short_readings_do_not_make_long_ones_seem_slow() -> None:
    """Two milliseconds a pass and ten microseconds a token, mostly seen by 25 tokens: of 800 tokens, in one row and in eight."""
    late = LateReading(50.0)
    assert not late.is_known
    for number in range(40):
        num_tokens = 400 if number % 8 == 0 else 25
        late.observe(num_tokens, 2e-3 + 1e-5 * num_tokens)
    assert late.is_known
    assert late.seconds(np.array([800])).sum() == pytest.approx(10e-3, rel=0.1)
    assert late.seconds(np.full(8, 100)).sum() == pytest.approx(10e-3, rel=0.1)


def test_who_has_nothing_to_read_takes_no_part() -> None:
    late = LateReading(50.0)
    for num_tokens in (25, 400) * 10:
        late.observe(num_tokens, 2e-3 + 1e-5 * num_tokens)
    one, nothing = late.seconds(np.array([100, 0]))
    assert one == pytest.approx(3e-3, rel=0.1)
    assert nothing == 0
    assert late.seconds(np.zeros(3, dtype=int)).tolist() == [0, 0, 0]
