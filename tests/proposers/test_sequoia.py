"""The best static tree, and the order in which small budgets keep its paths."""

import itertools

import numpy as np
import pytest

from specresearch.proposers.sequoia import (
    TYPICAL_RANK_ACCEPTANCE,
    best_tree,
    best_trees,
    likeliest_first,
    path_acceptance,
)
from specresearch.proposers.static_tree import StaticTree


def test_the_best_tree_holds_the_most_probable_nodes() -> None:
    """This holds if acceptance falls by rank."""
    acceptance, num, depth = (0.62, 0.2, 0.11, 0.03), 20, 4
    nodes = {}
    for length in range(1, depth + 1):
        for path in itertools.product(range(len(acceptance)), repeat=length):
            nodes[path] = float(np.prod([acceptance[rank] for rank in path]))
    best = sorted(nodes.values(), reverse=True)[:num]
    tree = best_tree(acceptance, num, depth)
    assert len(tree.paths) == num
    assert tree.expected == pytest.approx(1 + sum(best))
    assert sum(nodes[path] for path in tree.paths) == pytest.approx(sum(best))
    StaticTree.from_paths(tree.paths)


def test_a_perfect_first_child_gives_a_chain() -> None:
    tree = best_tree((1.0, 0.0), 5, 9)
    assert tree.paths == ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0))
    assert (tree.depth, tree.expected) == (5, 6.0)


def test_more_nodes_and_levels_never_hurt() -> None:
    trees = best_trees((0.5, 0.3, 0.1), 8, 3)
    expected = np.array([tree.expected for tree in trees]).reshape(3, 8)
    assert (np.diff(expected, axis=0) >= 0).all()
    assert (np.diff(expected, axis=1) >= -1e-12).all()


@pytest.mark.parametrize("acceptance", [(), (1.2,), (-0.1,)])
def test_rejects_an_invalid_acceptance(acceptance: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"acceptance|at least one"):
        best_tree(acceptance, 4, 2)


def test_paths_come_likeliest_first_and_a_tree_keeps_the_order() -> None:
    tree = best_tree(TYPICAL_RANK_ACCEPTANCE, 80, 6)
    probabilities = [
        np.prod([TYPICAL_RANK_ACCEPTANCE[rank] for rank in path]) for path in tree.paths
    ]
    assert (np.diff(probabilities) <= 1e-12).all()
    assert StaticTree.from_paths(tree.paths).paths == tree.paths


def test_equally_likely_paths_are_ordered_by_length_and_then_by_rank() -> None:
    paths = [(1, 0), (0, 0, 1), (0, 1, 0), (1,), (0, 1), (0, 0), (0,)]
    ordered = ((0,), (0, 0), (1,), (0, 1), (1, 0), (0, 0, 1), (0, 1, 0))
    assert likeliest_first(paths, (1.0, 0.1)) == ordered


def test_the_order_of_ranks_on_a_path_does_not_matter() -> None:
    orders = itertools.permutations((0, 1, 2, 3, 4))
    assert len({path_acceptance(path, TYPICAL_RANK_ACCEPTANCE) for path in orders}) == 1
