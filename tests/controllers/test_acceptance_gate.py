from typing import Any

import pytest
from simulation import Simulation, batch_of, record_of, rows_of

from specresearch.controllers import AcceptanceGate
from specresearch.proposal import DraftKind


def test_shuts_and_opens_each_request_by_itself() -> None:
    controller = AcceptanceGate(window=4, probe_every=5, num_draft_tokens=4)
    simulation = Simulation(controller, [0.0, 1.0])
    steps = simulation.run(20)
    assert [mine for mine, _ in steps] == [4] * 4 + [0] * 5 + [4] + [0] * 5 + [4] + [0] * 4
    assert {other for _, other in steps} == {4}
    simulation.acceptance = [1.0, 0.0]
    steps = simulation.run(10)
    assert [mine for mine, _ in steps] == [0] + [4] * 9
    assert [other for _, other in steps] == [4] * 3 + [0] * 5 + [4] + [0]


def test_only_steps_with_drafts_count() -> None:
    """A drafter that finds nothing is neither refused nor a probe."""
    controller, batch = AcceptanceGate(window=2, probe_every=2), batch_of(rows_of(1))
    seen = []
    for drafted, accepted in [(0, 0)] * 5 + [(4, 0)] * 2 + [(0, 0)] * 4 + [(4, 2)] + [(4, 0)] * 2:
        seen.append(controller.budget(batch)[0])
        controller.observe(record_of([drafted], [accepted]))
    assert seen == [None] * 5 + [None] * 2 + [0] * 2 + [None] * 2 + [None] + [None, 0]


def test_a_rate_at_the_bound_keeps_drafting() -> None:
    controller, batch = AcceptanceGate(0.5, window=2), batch_of(rows_of(1))
    for _ in range(10):
        assert controller.budget(batch) == [None]
        controller.observe(record_of([4], [2]))


def test_judges_trees_by_their_depth() -> None:
    AcceptanceGate().bind(DraftKind(trees=True), 60)


def test_reset_trace_and_forgetting() -> None:
    controller = AcceptanceGate(window=1, trace_every=10)
    simulation = Simulation(controller, [0.0, 1.0])
    simulation.run(10)
    assert controller.trace() == [{"step": 10, "num_requests": 2, "num_shut": 1}]
    controller.reset()
    assert (controller.trace(), simulation.step()) == ([], [10, 10])
    assert len(controller._gates) == 2
    del simulation
    assert len(controller._gates) == 0


@pytest.mark.parametrize(
    "setting", [{"min_acceptance": 1.5}, {"window": 0}, {"probe_every": 0}, {"trace_every": 0}]
)
def test_settings_out_of_range(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"controller.{next(iter(setting))}="):
        AcceptanceGate(**setting)
