import itertools
from typing import Any

import numpy as np
import pytest
import torch

from specresearch.proposers.shapes import (
    TYPICAL_RANK_ACCEPTANCE,
    TreeShape,
    best_tree,
    best_trees,
    likeliest_first,
    path_acceptance,
)
from specresearch.proposers.static_tree import StaticTree


class TestSequoia:
    def test_equals_the_most_probable_nodes(self) -> None:
        """With acceptance falling by rank, the best tree holds the nodes that are most likely to be reached."""
        acceptance, num, depth = (0.62, 0.2, 0.11, 0.03), 20, 4
        nodes = {
            path: float(np.prod([acceptance[rank] for rank in path]))
            for length in range(1, depth + 1)
            for path in itertools.product(range(len(acceptance)), repeat=length)
        }
        best = sorted(nodes.values(), reverse=True)[:num]
        tree = best_tree(acceptance, num, depth)
        assert len(tree.paths) == num
        assert tree.expected == pytest.approx(1 + sum(best))
        assert sum(nodes[path] for path in tree.paths) == pytest.approx(sum(best))
        StaticTree.from_paths(tree.paths)

    def test_a_perfect_first_child_gives_a_chain(self) -> None:
        tree = best_tree((1.0, 0.0), 5, 9)
        assert tree.paths == ((0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0, 0))
        assert (tree.depth, tree.expected) == (5, 6.0)

    def test_more_nodes_and_levels_never_hurt(self) -> None:
        trees = best_trees((0.5, 0.3, 0.1), 8, 3)
        expected = np.array([tree.expected for tree in trees]).reshape(3, 8)
        assert (np.diff(expected, axis=0) >= 0).all()
        assert (np.diff(expected, axis=1) >= -1e-12).all()

    @pytest.mark.parametrize("acceptance", [(), (1.2,), (-0.1,)])
    def test_refuses_what_is_no_acceptance(self, acceptance: tuple[float, ...]) -> None:
        with pytest.raises(ValueError, match=r"acceptance|at least one"):
            best_tree(acceptance, 4, 2)


class TestOrder:
    def test_paths_come_likeliest_first_and_a_tree_keeps_them_so(self) -> None:
        tree = best_tree(TYPICAL_RANK_ACCEPTANCE, 80, 6)
        chances = [np.prod([TYPICAL_RANK_ACCEPTANCE[rank] for rank in path]) for path in tree.paths]
        assert (np.diff(chances) <= 1e-12).all()
        assert StaticTree.from_paths(tree.paths).paths == tree.paths

    def test_of_equally_likely_paths_the_shorter_comes_first_then_the_lower_rank(self) -> None:
        paths = [(1, 0), (0, 0, 1), (0, 1, 0), (1,), (0, 1), (0, 0), (0,)]
        ordered = ((0,), (0, 0), (1,), (0, 1), (1, 0), (0, 0, 1), (0, 1, 0))
        assert likeliest_first(paths, (1.0, 0.1)) == ordered

    def test_the_order_of_ranks_on_a_path_does_not_matter(self) -> None:
        orders = itertools.permutations((0, 1, 2, 3, 4))
        assert len({path_acceptance(path, TYPICAL_RANK_ACCEPTANCE) for path in orders}) == 1


class TestShape:
    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"name": "bush"}, "choose one of chain, static, dynamic"),
            ({"name": "dynamic", "depth": 0}, "at least 1"),
            ({"name": "dynamic", "depth": 2, "top_k": 2}, "has 6 nodes to choose from"),
            ({"name": "chain", "paths": [[0]]}, "is for proposer.tree=static"),
            ({"name": "static", "paths": "/nowhere.json"}, "no list of paths"),
        ],
    )
    def test_bad_settings(self, settings: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint):
            TreeShape(num_draft_tokens=10, **settings)

    def test_rank_beyond_the_vocabulary(self) -> None:
        with pytest.raises(ValueError, match="rank 9 and the vocabulary 7"):
            TreeShape("static", 1, [[9]]).bind(7, torch.device("cpu"))


@pytest.mark.parametrize(
    ("paths", "name"), [([[0], [0, 0], [0, 0, 0]], "chain"), ([[0], [0, 0], [1]], "static")]
)
def test_a_tree_without_branches_is_a_chain(paths: list[list[int]], name: str) -> None:
    shape = TreeShape("static", None, paths)
    assert (shape.name, shape.num_draft_tokens) == (name, 3)
