"""Static trees: their validation, cropping and order."""

import pytest
from static_trees import IN_ORDER_OF_USE

from specresearch.proposers.static_tree import StaticTree


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        ([], "list of paths"),
        ([()], "list of paths"),
        ([(0, 0)], r"path \[0, 0\] has no parent"),
        ([(-1,)], "from 0 on"),
    ],
)
def test_an_invalid_tree_is_rejected(paths: list[tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        StaticTree.from_paths(paths)


def test_a_crop_that_does_not_branch_is_a_chain() -> None:
    tree = StaticTree.from_paths(IN_ORDER_OF_USE)
    assert tree.crop([2, 1], [9, 9]).topology.is_chain
    assert not tree.crop([3, 1], [9, 9]).topology.is_chain


def test_parents_and_earlier_siblings_come_first() -> None:
    paths = [(1, 1), (2,), (0, 0), (0,), (1,), (1, 0)]
    tree = StaticTree.from_paths(paths)
    assert tree.paths == ((0,), (1,), (1, 0), (1, 1), (2,), (0, 0))
