"""Fixtures of this folder."""

from collections.abc import Iterator

import pytest
import shape_checks


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """Run long tests without shape checks, which would take most of the time."""
    with shape_checks.unchecked():
        yield
