from typing import Any

import pytest

from specresearch.results.caveats import caveats_of

SYNTHETIC = {"_target_": "specresearch.proposers.Synthetic", "drafter": {"weights": "trained"}}


@pytest.mark.parametrize(
    ("config", "caveats"),
    [
        ({"target": {"weights": "trained"}, "proposer": None}, []),
        ({"target": {"model": "of an earlier version"}}, []),
        ({"target": {"weights": "random"}}, ["random weights"]),
        ({"target": {}, "proposer": {"draft": {"weights": "random"}}}, ["random weights"]),
        ({"target": {}, "proposer": SYNTHETIC}, ["synthetic acceptance"]),
        ({"target": {}, "proposer": {"proposers": [SYNTHETIC]}}, ["synthetic acceptance"]),
        (
            {"target": {"weights": "random"}, "proposer": SYNTHETIC},
            ["synthetic acceptance", "random weights"],
        ),
    ],
)
def test_caveats_are_found_wherever_they_stand(config: dict[str, Any], caveats: list[str]) -> None:
    assert caveats_of(config) == caveats
