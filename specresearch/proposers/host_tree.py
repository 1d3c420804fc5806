"""Draft trees that are grown on the host, one node at a time, separately for each row."""

from collections.abc import Sequence

import torch

from specresearch.proposal import Proposal, Topology, upload


def padding_parents(first: int, num_nodes: int) -> list[int]:
    """Return the parents of nodes that pad a row from node `first` on.

    They form a binary tree below the root, which is neither deep nor wide.
    """
    parents = [0, *(first + i // 2 for i in range(num_nodes - first - 1))]
    return parents[: num_nodes - first]


class HostTree:
    """The drafts of one row; a node can only be added below an existing one.

    Attributes:
        tokens: The token of every node, root first, as in `Proposal`.
        parents: The parent of every node; the root's is -1.
        scores: The score of every node, as in `Proposal`.
        depths: Edges between the root and every node.
        num_children: The children of every node.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.scores = [root], [-1], [1.0]
        self.depths, self.num_children = [0], [0]

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, score: float = 1.0) -> int:
        """Add a node and return its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.depths.append(self.depths[parent] + 1)
        self.num_children.append(0)
        self.num_children[parent] += 1
        return len(self.tokens) - 1

    def pad(self, num_nodes: int) -> None:
        """Add padding up to `num_nodes` nodes."""
        for parent in padding_parents(len(self), num_nodes):
            self.add(parent, 0)

    @property
    def is_chain(self) -> bool:
        return max(self.num_children) <= 1


def stack_trees(
    trees: Sequence[HostTree],
    device: torch.device,
    *,
    lengths: Sequence[int] | None = None,
    scored: bool = False,
) -> Proposal:
    """Return the proposal of these rows, all point masses; a chain if all of them are chains.

    Args:
        lengths: Valid nodes of each row, if the target must be fed others too. None means all.
        scored: Include the scores.
    """
    host_lengths = tuple(map(len, trees)) if lengths is None else None
    width = max(map(len, trees))
    if all(tree.is_chain for tree in trees):
        topology = Topology.chain(width, device)
        tokens = [tree.tokens + [0] * (width - len(tree)) for tree in trees]
        scores = [tree.scores + [1.0] * (width - len(tree)) for tree in trees]
    else:
        for tree in trees:
            tree.pad(width)
        tokens = [tree.tokens for tree in trees]
        scores = [tree.scores for tree in trees]
        topology = Topology(
            upload([tree.parents for tree in trees], device),
            max_depth=max(max(tree.depths) for tree in trees),
            max_children=max(max(tree.num_children) for tree in trees),
        )
    return Proposal(
        upload(tokens, device),
        topology,
        upload(host_lengths or lengths, device),
        scores=upload(scores, device, torch.float32) if scored else None,
        host_lengths=host_lengths,
    )
