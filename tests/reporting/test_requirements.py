"""What a user asks for."""

from typing import Any

import pytest

from specresearch.reporting import Requirements


@pytest.mark.parametrize("limit", [{"ttft": 0.0}, {"tpot": -1.0}, {"worth": float("inf")}])
def test_absurd_limits_are_refused(limit: dict[str, Any]) -> None:
    (name,) = limit
    with pytest.raises(ValueError, match=f"--{name}="):
        Requirements(**limit)


def test_limits_of_load_runs_hold_where_the_user_names_none() -> None:
    runs = [{"ttft": 0.5, "tpot": 0.05}]
    assert Requirements(tpot=None, percentile=99).or_limits_of(runs).limits == {
        "ttft_p99": 0.5,
        "tpot_p99": 0.05,
    }
    assert Requirements(tpot=0.1, percentile=50).or_limits_of(runs).limits == {"tpot_p50": 0.1}
    assert (
        Requirements(tpot=None, percentile=99)
        .or_limits_of([*runs, {"ttft": 1.0, "tpot": 0.1}])
        .limits
        == {}
    )
