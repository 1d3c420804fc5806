"""What a step takes is known before the first one if it was measured."""

import pytest

from specresearch.controllers.step_time import StepTime
from specresearch.proposal import DraftForecast


def test_what_was_foreseen_is_known_before_the_first_step() -> None:
    """Drafting takes 2 ms and 1 ms a level, verification 10 ms and 0.1 ms a draft."""
    levels = [(0, 0.0), *((depth, 2e-3 + 1e-3 * depth) for depth in (1, 4, 7))]
    drafts = [(0, 10e-3), *((num, 10e-3 + 0.1e-3 * num) for num in (4, 20, 60))]
    step_time = StepTime(50.0)
    step_time.foresee(DraftForecast((0.5,), (1.0,), 1.0, 4, tuple(levels), tuple(drafts)))
    step_time.solve()
    costs = step_time.costs()
    assert costs.node == pytest.approx(0.1e-3, rel=0.05)
    assert costs.level + 4 * costs.row_level == pytest.approx(1e-3, rel=0.05)
    assert costs.any == pytest.approx(2e-3, rel=0.1)
    assert step_time.plain(4, 0) == pytest.approx(10e-3, rel=0.05)
