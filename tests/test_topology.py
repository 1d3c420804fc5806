"""Draft trees: ancestors, depths and children, and how trees are built and validated."""

import pytest
import torch

from specresearch.topology import Topology


def naive_ancestors(parents: list[int]) -> list[list[bool]]:
    rows = []
    for node in range(len(parents)):
        path = set()
        ancestor = node
        while ancestor >= 0:
            path.add(ancestor)
            ancestor = parents[ancestor]
        rows.append([other in path for other in range(len(parents))])
    return rows


@pytest.fixture
def random_parents() -> torch.Tensor:
    return torch.tensor([random_row() for _ in range(6)])


def random_row() -> list[int]:
    return [-1, *(int(torch.randint(0, node, ())) for node in range(1, 14))]


def test_ancestors_depth_and_bounds_equal_a_naive_walk(random_parents: torch.Tensor) -> None:
    topology = Topology.from_parents(random_parents)
    expected = torch.tensor([naive_ancestors(row) for row in random_parents.tolist()])
    assert torch.equal(topology.ancestors, expected)
    assert torch.equal(topology.depth, expected.sum(-1) - 1)
    assert topology.max_depth == int(topology.depth.max())
    assert topology.max_children == max(
        row.count(node) for row in random_parents.tolist() for node in range(14)
    )


def test_a_deep_chain_built_from_parents() -> None:
    for num_nodes in (1, 2, 3, 4, 5, 17, 33):
        grown = Topology(torch.arange(-1, num_nodes - 1)[None])
        assert torch.equal(grown.ancestors, Topology.chain(num_nodes).ancestors)
        assert grown.max_depth == num_nodes - 1


def test_children_are_listed_in_index_order(random_parents: torch.Tensor) -> None:
    topology = Topology.from_parents(random_parents)
    for row, parents in enumerate(random_parents.tolist()):
        for node in range(len(parents)):
            expected = [child for child, parent in enumerate(parents) if parent == node]
            assert [c for c in topology.children[row, node].tolist() if c >= 0] == expected


def test_a_chain() -> None:
    chain = Topology.chain(4)
    assert chain.is_chain
    assert chain is Topology.chain(4)
    assert chain.parents.tolist() == [[-1, 0, 1, 2]]
    assert chain.depth.tolist() == [[0, 1, 2, 3]]
    assert chain.children.tolist() == [[[1], [2], [3], [-1]]]


def test_a_tree_of_the_root_alone() -> None:
    for root in (
        Topology.chain(1),
        Topology.from_paths([]),
        Topology.from_parents(torch.tensor([[-1]])),
    ):
        assert (root.num_nodes, root.max_depth, root.max_children) == (1, 0, 0)
        assert root.children.shape == (1, 1, 0)


def test_from_parents_recognises_a_chain() -> None:
    assert Topology.from_parents(torch.tensor([[-1, 0, 1], [-1, 0, 1]])).is_chain
    assert not Topology.from_parents(torch.tensor([[-1, 0, 1], [-1, 0, 0]])).is_chain


@pytest.mark.parametrize("parents", [[0, 0], [-1, 1], [-1, -1], [-1, 0, 2], [-1, 0, -2]])
def test_from_parents_rejects_an_invalid_tree(parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"parents\[0, \d\]"):
        Topology.from_parents(torch.tensor([parents]))


def test_from_paths_numbers_nodes_by_path() -> None:
    topology = Topology.from_paths([(1,), (0, 0), (0,), (0, 1), (1, 0)])
    assert topology.parents.tolist() == [[-1, 0, 0, 1, 1, 2]]
    assert topology.max_children == 2


def test_from_paths_names_the_missing_prefix() -> None:
    with pytest.raises(ValueError, match=r"path \[0, 1\] has no parent \[0\]"):
        Topology.from_paths([(0, 1)])
