import pytest
from simulation import Simulation, batch_of, record_of, rows_of

from specresearch.controllers import Heuristic
from specresearch.proposal import DraftKind


def test_two_more_after_success_one_less_after_failure_each_row_its_own() -> None:
    controller, batch = Heuristic(start=4, max_draft_tokens=7), batch_of(rows_of(3))
    assert controller.budget(batch) == [4, 4, 4]
    controller.observe(record_of([4, 4, 0], [4, 3, 0]))
    assert controller.budget(batch) == [6, 3, 4]
    controller.observe(record_of([6, 1, 0], [6, 1, 0]))
    assert controller.budget(batch) == [7, 5, 4]


def test_bounds() -> None:
    assert Simulation(Heuristic(min_draft_tokens=2), [0.0]).run(20)[-1] == [2]
    assert Simulation(Heuristic(), [1.0], most=50).run(20)[-1] == [20]
    lengths = Simulation(Heuristic(), [1.0], most=3).run(5)
    assert lengths == [[3]] * 5


def test_a_request_of_the_same_name_starts_afresh() -> None:
    controller = Heuristic(start=5)
    Simulation(controller, [0.0, 1.0]).run(10)
    assert controller.budget(batch_of(rows_of(2))) == [5, 5]
    assert len(controller._lengths) == 0


def test_reset_and_trace() -> None:
    controller = Heuristic(trace_every=4)
    simulation = Simulation(controller, [1.0], most=20)
    simulation.run(6)
    assert controller.trace() == [{"step": 4, "mean_length": 8.0}, {"step": 6, "mean_length": 14.0}]
    controller.reset()
    assert (controller.trace(), simulation.step()) == ([], [5])


def test_refusals() -> None:
    with pytest.raises(ValueError, match="drafts trees; use a controller that works with trees"):
        Heuristic().bind(DraftKind(trees=True), 9)
    with pytest.raises(ValueError, match=r"set proposer\.tree=chain, or use a controller"):
        Heuristic().bind(DraftKind(trees=True, chain_setting="proposer.tree=chain"), 9)
    with pytest.raises(ValueError, match="min_draft_tokens=0, start=5"):
        Heuristic(min_draft_tokens=0)
    with pytest.raises(ValueError, match="start=30, max_draft_tokens=20"):
        Heuristic(start=30)
