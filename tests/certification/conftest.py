"""Fixtures of this folder."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """Shapes are checked in every other test; in long runs the checks would take most of the time."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
