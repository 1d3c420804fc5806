"""What is drafted before anything can be decided."""

import pytest
from simulation import Machine
from tree_stream import TreeStream

from specresearch.controllers import Goodput
from specresearch.controllers.first_steps import FirstSteps
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast, DraftKind

TREES = DraftKind(trees=True)


def test_a_third_of_the_requests_that_may_draft_does_so_as_deep_as_it_may() -> None:
    first = FirstSteps(DraftKind(), None)
    limits = [0, 9, 2, 9, 9]
    assert [first.depths(step, limits) for step in range(len(first))] == [
        *[[0] * 5] * 3,
        *[[0, 3, 2, 0, 0]] * 2,
    ]
    assert first.depths(3, [0, 0]) == [0, 0]


@pytest.mark.parametrize(("scored", "nodes"), [(True, [16, 16, 16]), (False, [16, 16, 4])])
def test_trees_without_scores_have_few_nodes_in_the_last_step(
    scored: bool, nodes: list[int]
) -> None:
    first = FirstSteps(DraftKind(trees=True, scored=scored), None)
    assert len(first) == 6
    assert [first.num_nodes(step) for step in (3, 4, 5)] == nodes
    assert [first.is_last(step) for step in (3, 4, 5)] == [False, False, True]


def test_one_step_drafts_where_times_were_measured_before_the_run() -> None:
    forecast = DraftForecast((0.5,), (1.0,), 1.0, 2, ((0, 1e-3), (1, 2e-3)), ((0, 8e-3),))
    assert [FirstSteps(TREES, forecast).depths(step, [5]) for step in (0, 1)] == [[0], [3]]
    acceptance_alone = DraftForecast((0.5,), (1.0,), 1.0)
    assert len(FirstSteps(TREES, acceptance_alone)) == 6


class Noted(Goodput):
    """Keeps the drafts of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.num_drafts: list[list[int]] = []

    def observe(self, record: StepRecord) -> None:
        self.num_drafts.append([number for number in record.num_draft_tokens if number])
        super().observe(record)


def test_trees_are_verified_whole_and_at_last_as_a_path() -> None:
    controller = Noted()
    TreeStream(Machine(), 6, 10).throughput(controller, 0)
    whole, _, path = controller.num_drafts[3:6]
    assert len(whole) == len(path) == 2
    assert min(whole) > 3
    assert path == [3, 3]
