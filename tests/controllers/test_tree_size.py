"""How many nodes few and many requests draft."""

import numpy as np
import torch
from simulation import record_of

from specresearch.controllers.evidence import AskedStep
from specresearch.controllers.scored_tree import ScoredTree
from specresearch.controllers.tree_size import _FEW, TreeSize
from specresearch.proposal import Proposal, Topology

TREE = ScoredTree.of(
    Proposal(
        torch.zeros((1, 2), dtype=torch.long),
        Topology.chain(2),
        scores=torch.ones((1, 2)),
        lengths=torch.tensor([2]),
    )
)


def steps_of(num_verified: int, num_steps: int, *, chosen: bool = True) -> list[AskedStep]:
    choice = (TREE, np.ones(2, bool)) if chosen else None
    step = AskedStep(record_of([num_verified], [0]), [], [3], choice)
    return [step] * num_steps


def test_few_requests_choose_until_enough_choices_are_known_and_then_once_a_decision() -> None:
    size = TreeSize(memory=50.0)
    size.observe(steps_of(3, 49))
    assert size.num_nodes(1, 3, is_new=False) == 16  # four a level, as a power of 2
    assert size.chooses
    size.observe(steps_of(3, 1))
    assert size.num_nodes(1, 3, is_new=False) == 3
    assert not size.chooses
    assert size.num_nodes(1, 3, is_new=True) == 16
    assert size.chooses
    assert size.num_nodes(_FEW, 3, is_new=False) == 16
    assert size.chooses


def test_few_requests_draft_what_they_find_between_choices() -> None:
    """A lookup's long match is worth most, and is longer than what is usually chosen."""
    size = TreeSize(memory=50.0, finds_depth=True)
    size.observe(steps_of(1, 60))
    assert size.num_nodes(1, 3, is_new=False) == 16
    assert not size.chooses


def test_few_requests_draft_what_the_last_choices_left() -> None:
    size = TreeSize(memory=50.0)
    size.observe(steps_of(3, 60))
    size.observe(steps_of(7, 20, chosen=False))
    assert size.num_nodes(1, 3, is_new=False) == 3
    size.observe(steps_of(7, 20))
    assert size.num_nodes(1, 3, is_new=False) == 7


def test_a_choice_of_nothing_leaves_one_node_to_draft() -> None:
    size = TreeSize(memory=50.0)
    size.observe(steps_of(0, 60))
    assert size.num_nodes(1, 3, is_new=False) == 1
