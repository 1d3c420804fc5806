"""The deepest accepted path of a tree, and the probability of a draft after its parent."""

import torch

from specresearch.acceptance.base import longest_path, own_probability
from specresearch.proposal import Proposal, Topology


def random_trees(num_rows: int, num_nodes: int, seed: int) -> Topology:
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(0, i, (num_rows,), generator=generator) for i in range(1, num_nodes)]
    return Topology.from_parents(torch.stack([torch.full((num_rows,), -1), *columns], dim=1))


def walked(accepted: list[bool], parents: list[int]) -> list[int]:
    """Return the deepest path whose nodes are all accepted; of equals, the first."""
    best = [0]
    for node in range(1, len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        if all(accepted[i] for i in path[1:]) and len(path) > len(best):
            best = path
    return best


def test_the_longest_path_is_the_deepest_and_the_first_of_equals() -> None:
    topology = random_trees(200, 8, seed=1)
    accepted = torch.rand((200, 8), generator=torch.Generator().manual_seed(2)) < 0.7
    path, num_accepted = longest_path(accepted, topology)
    for row, parents in enumerate(topology.parents.tolist()):
        expected = walked(accepted[row].tolist(), parents)
        assert path[row].tolist() == expected + [-1] * (path.shape[1] - len(expected))
        assert int(num_accepted[row]) == len(expected) - 1


def test_the_longest_path_works_for_shared_trees_and_chains() -> None:
    accepted = torch.rand((50, 5), generator=torch.Generator().manual_seed(3)) < 0.7
    for topology in (
        Topology.from_parents(torch.tensor([[-1, 0, 0, 1, 2]])),
        Topology.chain(5),
        Topology.chain(1),
    ):
        part = accepted[:, : topology.num_nodes]
        path, _ = longest_path(part, topology)
        for row in range(50):
            expected = walked(part[row].tolist(), topology.parents[0].tolist())
            assert path[row].tolist() == expected + [-1] * (path.shape[1] - len(expected))


def test_the_probability_of_a_draft_is_read_from_its_parents_row() -> None:
    generator = torch.Generator().manual_seed(4)
    for topology in (
        random_trees(6, 5, seed=5),
        Topology.from_parents(torch.tensor([[-1, 0, 0, 2, 1]])),
    ):
        tokens = torch.randint(0, 7, (6, 5), generator=generator)
        probs = torch.rand((6, 5, 7), generator=generator)
        probabilities = own_probability(probs, Proposal(tokens, topology, torch.full((6,), 5)))
        parents = topology.parents.expand(6, -1)
        for row in range(6):
            for node in range(1, 5):
                assert probabilities[row, node] == probs[row, parents[row, node], tokens[row, node]]
