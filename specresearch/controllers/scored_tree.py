"""A tree of drafts on the host with the drafter's scores, to choose the nodes to verify."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from specresearch.metrics import StepRecord
from specresearch.proposal import Proposal, Topology, upload
from specresearch.readback import Readback
from specresearch.tree_paths import along_paths, ancestors, flat_parents


@dataclass(frozen=True)
class ScoredTree:
    """The nodes of all rows, one row after another, before any is left out.

    Attributes:
        parents: A root is its own parent.
        depth: Edges from the root.
        scores: The drafter's probability of each node given its parent.
        is_valid: False for padding.
        widths: Nodes of each row, root and padding included.
        above: The nodes that are 1, 2, 4 .. levels above each.
    """

    parents: Int[np.ndarray, " BN"]
    depth: Int[np.ndarray, " BN"]
    scores: Float[np.ndarray, " BN"]
    is_valid: Bool[np.ndarray, " BN"]
    widths: Sequence[int]
    above: Sequence[Int[np.ndarray, " BN"]] = ()

    @staticmethod
    def of(proposal: Proposal) -> "ScoredTree":
        """Bring a proposal with scores to the host; on a GPU this waits for the drafts."""
        assert proposal.scores is not None
        readback = Readback()
        wanted = [proposal.scores.float(), proposal.topology.parents, proposal.lengths]
        fetched = readback.add_all(wanted)
        readback.fetch()
        scores, parents, lengths = (part.values.numpy() for part in fetched)
        rows, width = scores.shape
        above = ancestors(flat_parents(parents, rows), proposal.topology.max_depth)
        depth = np.ones((rows, width), dtype=int)
        depth[:, 0] = 0
        depth = along_paths(np.add, depth.ravel(), above)
        is_valid = (np.arange(width) < lengths[:, None]).ravel()
        return ScoredTree(above[0], depth, scores.ravel(), is_valid, [width] * rows, above)

    @staticmethod
    def joined(trees: Sequence["ScoredTree"]) -> "ScoredTree":
        """Return the rows of several steps as if they had been drafted in one."""
        if len(trees) == 1:
            return trees[0]
        sizes = [len(tree.parents) for tree in trees]
        starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
        return ScoredTree(
            np.concatenate([tree.parents for tree in trees]) + starts,
            np.concatenate([tree.depth for tree in trees]),
            np.concatenate([tree.scores for tree in trees]),
            np.concatenate([tree.is_valid for tree in trees]),
            [width for tree in trees for width in tree.widths],
        )

    def accepted(
        self, verified: Bool[np.ndarray, " BN"], ranks: Sequence[Sequence[int]]
    ) -> Bool[np.ndarray, " BN"]:
        """Return the roots and the nodes that were accepted of those that were verified.

        Args:
            ranks: Of the accepted nodes of each row among their verified siblings.
        """
        on_path, row = self.depth == 0, np.repeat(np.arange(len(ranks)), self.widths)
        for level in range(max(map(len, ranks))):
            rank = np.array([row[level] if level < len(row) else -1 for row in ranks])
            children = verified & (self.depth == level + 1) & on_path[self.parents]
            child = children.nonzero()[0]
            rows = row[child]
            place = np.arange(len(child)) - np.searchsorted(rows, rows)
            on_path[child[place == rank[rows]]] = True
        return on_path

    def likeliest(self) -> Bool[np.ndarray, " BN"]:
        """Return the roots, and below each the nodes that its drafter would have drawn first."""
        best = np.zeros(len(self.scores))
        is_draft = self.is_valid & (self.depth > 0)
        np.maximum.at(best, self.parents[is_draft], self.scores[is_draft])
        is_first = is_draft & (self.scores >= best[self.parents])
        return along_paths(np.logical_and, is_first | (self.depth == 0), self.above)

    def kept(self, keep: Bool[np.ndarray, " BN"], proposal: Proposal) -> Proposal:
        """Return the proposal with these nodes alone; the parent of a node that is kept is, too."""
        if (keep == self.is_valid).all():
            return proposal
        rows, width = proposal.token_ids.shape
        node = keep.nonzero()[0]
        row, column = np.divmod(node, width)
        lengths = np.bincount(row, minlength=rows)
        place = np.arange(len(node)) - np.repeat(lengths.cumsum() - lengths, lengths)
        index = np.arange(lengths.max())
        order = np.zeros((rows, len(index)), dtype=int)
        parents = np.tile(index - 1, (rows, 1))
        order[row, place] = column
        new_index = np.empty(len(keep), dtype=int)
        new_index[node] = place
        parents[row, place] = new_index[self.parents[node]]
        parents[:, 0] = -1
        device = proposal.token_ids.device
        if (parents == index - 1).all():
            topology = Topology.chain(len(index), device)
        else:
            topology = Topology(
                upload(parents, device),
                max_depth=min(proposal.topology.max_depth, len(index) - 1),
                max_children=proposal.topology.max_children,
            )
        columns, scores = upload(order, device), proposal.scores
        assert scores is not None
        return replace(
            proposal,
            token_ids=proposal.token_ids.gather(1, columns),
            topology=topology,
            lengths=upload(lengths, device),
            scores=scores.gather(1, columns),
            host_lengths=tuple(lengths.tolist()),
        )


def ranks(record: StepRecord) -> Sequence[Sequence[int]]:
    """Return the ranks of the accepted drafts of each row among their siblings."""
    if record.accepted_ranks is not None:
        return record.accepted_ranks
    return [[0] * num for num in record.num_accepted_tokens]
