"""A decision on everything that a test has written."""

from pathlib import Path

import pytest

from specresearch.reporting import Requirements, gather
from specresearch.reporting.decision import Decision, decide
from tests.reporting.decisions import Decide


@pytest.fixture
def decide_on(tmp_path: Path) -> Decide:
    def run(limits: Requirements | None = None) -> list[Decision]:
        return decide(gather([tmp_path]).comparisons, limits or Requirements())

    return run
