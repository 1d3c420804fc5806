import pytest
import torch

from specresearch.proposal import Proposal, Topology


def naive_ancestors(parents: list[int]) -> list[list[bool]]:
    rows = []
    for node in range(len(parents)):
        path, at = set(), node
        while at >= 0:
            path.add(at)
            at = parents[at]
        rows.append([other in path for other in range(len(parents))])
    return rows


@pytest.fixture
def random_parents() -> torch.Tensor:
    return torch.tensor(
        [[-1, *(int(torch.randint(0, i, ())) for i in range(1, 14))] for _ in range(6)]
    )


class TestTopology:
    def test_ancestors_depth_and_bounds_equal_a_naive_walk(
        self, random_parents: torch.Tensor
    ) -> None:
        topology = Topology.from_parents(random_parents)
        expected = torch.tensor([naive_ancestors(row) for row in random_parents.tolist()])
        assert torch.equal(topology.ancestors, expected)
        assert torch.equal(topology.depth, expected.sum(-1) - 1)
        assert topology.max_depth == int(topology.depth.max())
        assert topology.max_children == max(
            row.count(node) for row in random_parents.tolist() for node in range(14)
        )

    def test_a_deep_chain_built_from_parents(self) -> None:
        for num_nodes in (1, 2, 3, 4, 5, 17, 33):
            grown = Topology(torch.arange(-1, num_nodes - 1)[None])
            assert torch.equal(grown.ancestors, Topology.chain(num_nodes).ancestors)
            assert grown.max_depth == num_nodes - 1

    def test_children_are_listed_in_index_order(self, random_parents: torch.Tensor) -> None:
        topology = Topology.from_parents(random_parents)
        for row, parents in enumerate(random_parents.tolist()):
            for node in range(len(parents)):
                expected = [child for child, parent in enumerate(parents) if parent == node]
                assert [c for c in topology.children[row, node].tolist() if c >= 0] == expected

    def test_chain(self) -> None:
        chain = Topology.chain(4)
        assert chain.is_chain
        assert chain is Topology.chain(4)
        assert chain.parents.tolist() == [[-1, 0, 1, 2]]
        assert chain.depth.tolist() == [[0, 1, 2, 3]]
        assert chain.children.tolist() == [[[1], [2], [3], [-1]]]

    def test_root_alone(self) -> None:
        for root in (
            Topology.chain(1),
            Topology.from_paths([]),
            Topology.from_parents(torch.tensor([[-1]])),
        ):
            assert (root.num_nodes, root.max_depth, root.max_children) == (1, 0, 0)
            assert root.children.shape == (1, 1, 0)

    def test_from_parents_recognises_a_chain(self) -> None:
        assert Topology.from_parents(torch.tensor([[-1, 0, 1], [-1, 0, 1]])).is_chain
        assert not Topology.from_parents(torch.tensor([[-1, 0, 1], [-1, 0, 0]])).is_chain

    @pytest.mark.parametrize("parents", [[0, 0], [-1, 1], [-1, -1], [-1, 0, 2], [-1, 0, -2]])
    def test_from_parents_refuses_what_is_no_tree(self, parents: list[int]) -> None:
        with pytest.raises(ValueError, match=r"parents\[0, \d\]"):
            Topology.from_parents(torch.tensor([parents]))

    def test_from_paths(self) -> None:
        topology = Topology.from_paths([(1,), (0, 0), (0,), (0, 1), (1, 0)])
        assert topology.parents.tolist() == [[-1, 0, 0, 1, 1, 2]]
        assert topology.max_children == 2

    def test_from_paths_names_the_missing_prefix(self) -> None:
        with pytest.raises(ValueError, match=r"path \[0, 1\] has no parent \[0\]"):
            Topology.from_paths([(0, 1)])


class TestProposal:
    def test_nodes_past_the_length_and_probes_cannot_be_accepted(self) -> None:
        probe = torch.tensor([[False, True, False, False]])
        proposal = Proposal(
            torch.zeros(2, 4, dtype=torch.long),
            Topology.chain(4),
            torch.tensor([2, 4]),
            probe=probe,
        )
        assert proposal.acceptable.tolist() == [
            [True, False, False, False],
            [True, False, True, True],
        ]

    def test_an_empty_one_holds_the_roots_alone(self) -> None:
        proposal = Proposal.empty(torch.tensor([[4], [7]]))
        assert proposal.token_ids.tolist() == [[4], [7]]
        assert proposal.topology is Topology.chain(1, proposal.token_ids.device)
        assert tuple(proposal.lengths.tolist()) == proposal.host_lengths == (1, 1)
