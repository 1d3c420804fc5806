"""The target of the servers, and a server that the tests of a module share."""

from collections.abc import Iterator

import pytest
from live_server import MAX_LEN, Live, serving

from specresearch import CausalLM


@pytest.fixture(scope="session")
def target() -> CausalLM:
    return CausalLM.from_pretrained("zoo:tiny", max_len=MAX_LEN)


@pytest.fixture(scope="module")
def live(target: CausalLM) -> Iterator[Live]:
    """A server with a method, which the tests of a module share."""
    with serving(target) as server:
        yield server
