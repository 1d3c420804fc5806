import pytest
import torch

from specresearch.proposal import Topology
from specresearch.proposers.host_tree import HostTree, padding_parents, stack_trees

CPU = torch.device("cpu")


def tree_of(*parents: int) -> HostTree:
    tree = HostTree(9)
    for i, parent in enumerate(parents, start=1):
        assert tree.add(parent, 10 + i, 0.5) == i
    return tree


def test_ragged_trees_become_one_proposal() -> None:
    proposal = stack_trees([tree_of(0, 0, 1, 3), tree_of(), tree_of(0)], CPU, scored=True)
    assert proposal.lengths.tolist() == [5, 1, 2]
    assert proposal.token_ids[:, 0].tolist() == [9, 9, 9]
    assert proposal.token_ids[0].tolist() == [9, 11, 12, 13, 14]
    assert proposal.topology.parents[0].tolist() == [-1, 0, 0, 1, 3]
    assert proposal.scores is not None
    assert proposal.scores[2, :2].tolist() == [1.0, 0.5]
    assert proposal.draft_probs is None


@pytest.mark.parametrize("sizes", [(1, 2), (3, 40), (7, 8), (1, 65)])
def test_bounds_cover_padding_too(sizes: tuple[int, int]) -> None:
    small, large = sizes
    wide = tree_of(*([0] * min(large - 1, 3)), *range(1, large - 3))
    proposal = stack_trees([tree_of(*range(small - 1)), wide], CPU)
    recomputed = Topology.from_parents(proposal.topology.parents)
    assert recomputed.max_depth <= proposal.topology.max_depth
    assert recomputed.max_children <= proposal.topology.max_children
    assert proposal.topology.depth.equal(recomputed.depth)


@pytest.mark.parametrize("num", [1, 2, 6, 31])
def test_padding_is_neither_deep_nor_wide(num: int) -> None:
    topology = Topology.from_parents(torch.tensor([[-1, 0, 1, *padding_parents(3, 3 + num)]]))
    assert topology.max_children <= 2
    assert int(topology.depth[0, 3:].max()) == num.bit_length()


def test_chains_give_a_chain() -> None:
    proposal = stack_trees([tree_of(0, 1), tree_of(), tree_of(0)], CPU)
    assert proposal.topology is Topology.chain(3, CPU)
    assert proposal.token_ids.tolist() == [[9, 11, 12], [9, 0, 0], [9, 11, 0]]
    assert proposal.lengths.tolist() == [3, 1, 2]
    assert proposal.scores is None
