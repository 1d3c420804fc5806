import pytest
from scenarios import shared_target

from specresearch import CausalLM


@pytest.fixture
def target() -> CausalLM:
    return shared_target()
