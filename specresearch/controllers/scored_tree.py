"""A tree of drafts on the host with the drafter's scores, to choose the nodes to verify."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from specresearch.metrics import StepRecord
from specresearch.proposal import Proposal, Topology, upload
from specresearch.readback import Readback
from specresearch.tree_paths import along_paths, flat_parents


@dataclass(frozen=True)
class ScoredTree:
    """The nodes of all rows, one row after another, before any is left out.

    Attributes:
        parents: A root is its own parent.
        depth: Edges from the root.
        scores: The drafter's probability of each node given its parent.
        is_valid: False for padding.
        num_nodes: Nodes of a row, root and padding included.
    """

    parents: Int[np.ndarray, " BN"]
    depth: Int[np.ndarray, " BN"]
    scores: Float[np.ndarray, " BN"]
    is_valid: Bool[np.ndarray, " BN"]
    num_nodes: int

    @staticmethod
    def of(proposal: Proposal) -> "ScoredTree":
        """Bring a proposal with scores to the host; on a GPU this waits for the drafts."""
        assert proposal.scores is not None
        readback = Readback()
        wanted = [proposal.scores.float(), proposal.topology.parents, proposal.lengths]
        fetched = readback.add_all(wanted)
        readback.fetch()
        scores, above, lengths = (part.values.numpy() for part in fetched)
        rows, width = scores.shape
        parents = flat_parents(above, rows)
        is_draft = (np.arange(width) > 0) * np.ones((rows, 1), dtype=int)
        is_valid = np.arange(width) < lengths[:, None]
        depth = along_paths(np.add, is_draft.ravel(), parents)
        return ScoredTree(parents, depth, scores.ravel(), is_valid.ravel(), width)

    def accepted(
        self, verified: Bool[np.ndarray, " BN"], record: StepRecord
    ) -> Bool[np.ndarray, " BN"]:
        """Return the roots and the nodes that were accepted of those that were verified."""
        width, num_accepted = self.num_nodes, np.array(record.num_accepted_tokens)
        rows = np.arange(len(num_accepted))
        parents = self.parents.reshape(-1, width)
        may_follow = (verified & (self.depth > 0)).reshape(-1, width)
        node, on_path = rows * width, np.zeros(len(verified), dtype=bool)
        on_path[node] = True
        for level in range(int(num_accepted.max())):
            children = may_follow & (parents == node[:, None])
            rank = np.zeros_like(num_accepted)
            if record.accepted_ranks is not None:
                rank = np.array(
                    [row[level] if level < len(row) else 0 for row in record.accepted_ranks]
                )
            is_next = children & (children.cumsum(axis=1) == rank[:, None] + 1)
            node = np.where(num_accepted > level, rows * width + is_next.argmax(axis=1), node)
            on_path[node] = True
        return on_path

    def kept(self, keep: Bool[np.ndarray, " BN"], proposal: Proposal) -> Proposal:
        """Return the proposal with these nodes alone; the parent of a node that is kept is, too."""
        if (keep == self.is_valid).all():
            return proposal
        rows, width = len(keep) // self.num_nodes, self.num_nodes
        lengths = keep.reshape(rows, width).sum(axis=1)
        index = np.arange(lengths.max())
        order = np.argsort(~keep.reshape(rows, width), axis=1, kind="stable")[:, : len(index)]
        chosen = order + width * np.arange(rows)[:, None]
        new_index = (keep.reshape(rows, width).cumsum(axis=1) - 1).ravel()
        parents = np.where(index < lengths[:, None], new_index[self.parents[chosen]], index - 1)
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
