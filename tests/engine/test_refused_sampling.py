"""What a rule or a proposer cannot serve is refused at once, and fails no step of the others."""

from collections.abc import Callable

import pytest
from scenarios import shared_target

from specresearch import Engine, Request, SamplingParams
from specresearch.acceptance import Greedy
from specresearch.proposers import NGram, Synthetic

GREEDY = SamplingParams(max_new_tokens=4)
SAMPLED = SamplingParams(0.7, max_new_tokens=4)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Engine(shared_target(), NGram(3), Greedy()), "exact for temperature 0 only"),
        (lambda: Engine(shared_target(), Synthetic(NGram(3), [0.5])), "temperature 0.7"),
    ],
)
def test_it_is_refused_when_it_is_submitted(build: Callable[[], Engine], reason: str) -> None:
    engine = build()
    engine.submit(Request([1, 2, 3], GREEDY, "good"))
    with pytest.raises(ValueError, match=reason):
        engine.submit(Request([1, 2, 3], SAMPLED, "bad"))
    finished = []
    while engine.has_work:
        engine.step()
        finished += engine.pop_finished()
    assert [output.id for output in finished] == ["good"]
