"""Draft trees that are grown on the host, one node at a time, each row its own."""

from collections.abc import Sequence

import torch

from specresearch.proposal import Proposal, Topology, upload


def padding_parents(first: int, num_nodes: int) -> list[int]:
    """Parents of nodes that fill a row from node `first` on: a binary tree below the root, neither deep nor wide."""
    return [0 if i == 0 else first + (i - 1) // 2 for i in range(num_nodes - first)]


class HostTree:
    """The drafts of one row; a node can only be added below one that is there.

    tokens, parents, scores: of every node, as in `Proposal`. depths, num_children: of every node.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.scores = [root], [-1], [1.0]
        self.depths, self.num_children = [0], [0]

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, score: float = 1.0) -> int:
        """The index of the new node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.depths.append(self.depths[parent] + 1)
        self.num_children.append(0)
        self.num_children[parent] += 1
        return len(self.tokens) - 1

    def pad(self, num_nodes: int) -> None:
        """Fill up to `num_nodes` with nodes that stand for nothing."""
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
    """The rows of a proposal, all point masses: a chain where all of them are chains.

    lengths: valid nodes of each row, where the target must be fed others too; None: all of them. scored: pass the scores on.
    """
    host_lengths = tuple(map(len, trees)) if lengths is None else None
    width = max(map(len, trees))
    if all(tree.is_chain for tree in trees):
        padding = [width - len(tree) for tree in trees]
        tokens = [tree.tokens + [0] * num for tree, num in zip(trees, padding, strict=True)]
        scores = [tree.scores + [1.0] * num for tree, num in zip(trees, padding, strict=True)]
        topology = Topology.chain(width, device)
    else:
        for tree in trees:
            tree.pad(width)
        tokens, scores = [tree.tokens for tree in trees], [tree.scores for tree in trees]
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
