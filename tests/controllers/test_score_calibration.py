"""What scores of drafts are worth, and trees with a part of their nodes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from simulation import record_of

from specresearch.controllers import score_calibration
from specresearch.controllers.evidence import AskedStep
from specresearch.controllers.score_calibration import ScoreCalibration
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftForecast, DraftKind, Proposal, Topology

PARENTS = [[-1, 0, 0, 1, 1, 2], [-1, 0, 1, 2, 0, 0]]
SCORES = [[1.0, 0.6, 0.3, 0.9, 0.12, 0.5], [1.0, 0.9, 0.9, 0.9, 0.04, 0.0]]
LENGTHS = (6, 5)


def proposal() -> Proposal:
    return Proposal(
        torch.arange(12).view(2, 6),
        Topology.from_parents(torch.tensor(PARENTS)),
        torch.tensor(LENGTHS),
        scores=torch.tensor(SCORES),
        host_lengths=LENGTHS,
    )


def keep(*rows: list[int]) -> Any:
    mask = np.zeros((2, 6), dtype=bool)
    for b, nodes in enumerate(rows):
        mask[b, nodes] = True
    return mask.ravel()


def test_the_tree_is_read_as_it_was_drafted() -> None:
    tree = ScoredTree.of(proposal())
    assert tree.depth.reshape(2, 6).tolist() == [[0, 1, 1, 2, 2, 2], [0, 1, 2, 3, 1, 1]]
    assert tree.is_valid.reshape(2, 6).sum(axis=1).tolist() == list(LENGTHS)
    chain = Proposal.chain(torch.arange(8).view(2, 4), torch.tensor([4, 2]), host_lengths=[4, 2])
    tree = ScoredTree.of(replace(chain, scores=torch.ones(2, 4)))
    assert tree.depth.reshape(2, 4).tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_of_half_precision_are_read(dtype: torch.dtype) -> None:
    drafted = proposal()
    assert drafted.scores is not None
    tree = ScoredTree.of(replace(drafted, scores=drafted.scores.to(dtype)))
    assert tree.scores == pytest.approx(ScoredTree.of(drafted).scores, abs=0.01)


def test_survival_is_the_product_along_the_path() -> None:
    tree, calibration = ScoredTree.of(proposal()), ScoreCalibration(4, 50.0)
    survival = calibration.survival(tree).reshape(2, 6)
    at = {
        score: float(
            calibration.rates[
                0, np.searchsorted([0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95], score)
            ]
        )
        for score in (0.6, 0.9, 0.12)
    }
    assert survival[0, 3] == pytest.approx(at[0.6] * at[0.9])
    assert survival[0, 4] == pytest.approx(at[0.6] * at[0.12])
    assert survival[1, 3] == pytest.approx(at[0.9] ** 3)
    assert survival[:, 0].tolist() == [1, 1]


def test_a_part_of_a_tree_is_a_tree() -> None:
    drafted = proposal()
    tree = ScoredTree.of(drafted)
    part = tree.kept(keep([0, 2, 5], [0, 1, 2, 3]), drafted)
    part.check(drafted.token_ids[:, :1], [5, 5], DraftKind(trees=True, scored=True), 12)
    assert part.host_lengths == (3, 4)
    assert part.token_ids[0, :3].tolist() == [0, 2, 5]
    assert part.token_ids[1].tolist() == [6, 7, 8, 9]
    assert part.topology.parents[0, :3].tolist() == [-1, 0, 1]
    assert part.topology.is_chain
    assert part.scores is not None
    assert part.scores[1].tolist() == pytest.approx([1.0, 0.9, 0.9, 0.9])
    branching = tree.kept(keep([0, 1, 3, 4], [0]), drafted)
    branching.check(drafted.token_ids[:, :1], [5, 5], DraftKind(trees=True, scored=True), 12)
    assert branching.topology.parents[0].tolist() == [-1, 0, 1, 1]
    assert branching.host_lengths == (4, 1)
    assert tree.kept(tree.is_valid, drafted) is drafted


def record(accepted: list[int], ranks: tuple[tuple[int, ...], ...]) -> StepRecord:
    return replace(record_of([5, 4], accepted), accepted_ranks=ranks)


def asked(tree: ScoredTree, verified: Any, step: StepRecord) -> AskedStep:
    return AskedStep(step, [], [], (tree, verified))


def test_judged_nodes_are_counted_by_level_and_score() -> None:
    """Row 0 accepts nodes 2 and 5; row 1 accepts node 1, and node 2 below it is refused."""
    tree, calibration = ScoredTree.of(proposal()), ScoreCalibration(4, 1e9)
    calibration.observe([asked(tree, tree.is_valid, record([2, 1], ((1, 0), (0,))))])
    classes = np.searchsorted(score_calibration._EDGES, tree.scores).reshape(2, 6)
    judged, accepted = calibration._judged, calibration._accepted
    assert judged.sum() == 2 + 1 + 2 + 1
    assert accepted.sum() == 3
    assert accepted[0, classes[0, 2]] == accepted[1, classes[0, 5]] == 1
    assert accepted[0, classes[1, 1]] == 1
    assert judged[1, classes[1, 2]] == 1
    assert accepted[1, classes[1, 2]] == 0


def test_nodes_that_were_left_out_are_not_judged() -> None:
    """Without node 1 the accepted node 2 is the first child."""
    tree, calibration = ScoredTree.of(proposal()), ScoreCalibration(4, 1e9)
    calibration.observe([asked(tree, keep([0, 2, 5], [0]), record([2, 0], ((0, 0), ())))])
    assert calibration._judged.sum() == calibration._accepted.sum() == 2


def test_an_output_that_ends_in_a_draft_is_not_judged() -> None:
    tree, calibration = ScoredTree.of(proposal()), ScoreCalibration(4, 1e9)
    ended = replace(record([2, 0], ((1, 0), ())), num_new_tokens=(2, 1))
    calibration.observe([asked(tree, tree.is_valid, ended)])
    assert calibration._judged.sum() == 2


def test_learns_what_scores_mean() -> None:
    """A drafter that is always sure, and right in two of five cases."""
    rng, calibration = np.random.default_rng(0), ScoreCalibration(2, 200.0)
    chain = Proposal.chain(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]), host_lengths=[2])
    for _ in range(400):
        score = float(rng.choice([0.3, 0.97]))
        tree = ScoredTree.of(replace(chain, scores=torch.tensor([[1.0, score]])))
        accepted = int(rng.random() < 0.4)
        calibration.observe([asked(tree, tree.is_valid, record_of([1], [accepted]))])
    assert calibration.survival(tree)[1] == pytest.approx(0.4, abs=0.1)
    unseen = calibration.rates[1]  # the second level, which is taken to be like the first
    assert unseen[-1] == pytest.approx(calibration.rates[0, -1], abs=0.05)
    assert unseen[-2] > 0.85  # a score that neither level had


def test_a_class_of_scores_that_was_refused_by_chance_comes_back_to_its_forecast() -> None:
    """Of nodes with a score of 0.06 a measurement before the run saw every fifth accepted."""
    judged, accepted = np.zeros((2, 3, len(score_calibration._SCORES)))
    judged[0, 2], accepted[0, 2] = 100, 20
    counts = (tuple(judged[0]),), (tuple(accepted[0]),)
    forecast = DraftForecast((0.2,), (1.0,), 1.0, 1, (), (), *counts)
    foretold, alone = ScoreCalibration(3, 20.0, forecast), ScoreCalibration(3, 20.0)
    assert foretold.rates[0, 2] == pytest.approx(0.2, abs=0.01)
    chain = Proposal.chain(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]), host_lengths=[2])
    refused = ScoredTree.of(replace(chain, scores=torch.tensor([[1.0, 0.06]])))
    for _ in range(60):
        for calibration in (foretold, alone):
            calibration.observe([asked(refused, refused.is_valid, record_of([1], [0]))])
    assert foretold.rates[0, 2] < 0.11
    sure = ScoredTree.of(replace(chain, scores=torch.tensor([[1.0, 0.97]])))
    for _ in range(60):
        for calibration in (foretold, alone):
            calibration.observe([asked(sure, sure.is_valid, record_of([1], [1]))])
    assert foretold.rates[0, 2] > 0.18
    assert alone.rates[0, 2] < 0.05


def test_a_forecast_may_know_more_levels_or_fewer() -> None:
    level = (30.0,) * len(score_calibration._SCORES)
    forecast = DraftForecast((), (), 1.0, judged_scores=(level,) * 3, accepted_scores=(level,) * 3)
    for num_levels in (2, 5):
        rates = ScoreCalibration(num_levels, 20.0, forecast).rates
        assert rates.shape == (num_levels, len(level))
        assert rates[:3].min() > 0.8


def test_steps_of_several_sizes_are_learned_from_at_once() -> None:
    whole, drafted = ScoredTree.of(proposal()), proposal()
    part = keep([0, 1, 3], [0, 1, 2])
    smaller = ScoredTree.of(whole.kept(part, drafted))
    one_by_one, at_once = ScoreCalibration(4, 50.0), ScoreCalibration(4, 50.0)
    steps = [
        asked(whole, whole.is_valid, record([2, 1], ((1, 0), (0,)))),
        asked(smaller, smaller.is_valid, record([1, 2], ((0,), (0, 0)))),
        asked(whole, part, record([0, 2], ((), (0, 0)))),
    ]
    for step in steps:
        one_by_one.observe([step])
    at_once.observe(steps)
    assert (one_by_one._judged > 0).sum() == (at_once._judged > 0).sum() > 4
    np.testing.assert_allclose(at_once.rates, one_by_one.rates, atol=0.02)


def test_steps_whose_nodes_were_not_chosen_teach_nothing() -> None:
    calibration = ScoreCalibration(2, 50.0)
    before = calibration.rates.copy()
    calibration.observe([AskedStep(record([2, 1], ((1, 0), (0,))), [], [])])
    np.testing.assert_array_equal(calibration.rates, before)


def test_the_likeliest_nodes_are_a_path_from_each_root() -> None:
    parents = torch.tensor([[-1, 0, 0, 2, 2]] * 4)
    scores = torch.tensor([[1.0, 0.3, 0.6, 0.9, 0.2]]).expand(4, -1)
    lengths = torch.tensor([5, 4, 3, 1])
    proposal = Proposal(
        torch.zeros((4, 5), dtype=torch.long),
        Topology.from_parents(parents),
        scores=scores,
        lengths=lengths,
    )
    kept = ScoredTree.of(proposal).likeliest().reshape(4, 5)
    assert kept[0].tolist() == [True, False, True, True, False]
    assert kept[2].tolist() == [True, False, True, False, False]  # two of its nodes are padding
    assert kept[3].tolist() == [True, False, False, False, False]
