"""What a drafter's own scores say about acceptance, and the nodes of a tree that are worth it."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from specresearch.metrics import StepRecord
from specresearch.proposal import Proposal, Topology, upload
from specresearch.readback import Readback

_EDGES = np.array([0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95])  # of classes of scores
_SCORES = (np.append(0.0, _EDGES) + np.append(_EDGES, 1.0)) / 2  # of each class
_PRIOR = 4.0  # judged nodes after which a class is believed more than the scores themselves


@dataclass(frozen=True)
class ScoredTree:
    """A tree of point masses on the host, before anything was left out.

    Attributes:
        parents: Of the nodes of all rows, one row after another; a root is its own parent.
        depth: Edges from the root.
        classes: The class of each node's score.
        is_valid: False for padding.
        num_nodes: Nodes of a row, root and padding included.
    """

    parents: Int[np.ndarray, " BN"]
    depth: Int[np.ndarray, " BN"]
    classes: Int[np.ndarray, " BN"]
    is_valid: Bool[np.ndarray, " BN"]
    num_nodes: int

    @staticmethod
    def of(proposal: Proposal) -> "ScoredTree":
        """Bring a proposal with scores to the host; on a GPU this waits for the drafts."""
        assert proposal.scores is not None
        readback = Readback()
        fetched = readback.add_all([proposal.scores, proposal.topology.parents, proposal.lengths])
        readback.fetch()
        scores, above, lengths = (part.values.numpy() for part in fetched)
        rows, width = scores.shape
        index = np.arange(width)
        if proposal.topology.is_chain:
            parents = np.broadcast_to((index - 1).clip(min=0), scores.shape)
        else:
            parents = np.broadcast_to(above.clip(min=0), scores.shape)
        parents = (parents + width * np.arange(rows)[:, None]).ravel()
        depth, above = (parents != np.arange(rows * width)) * 1, parents
        reach = 1
        while reach < proposal.topology.max_depth:  # each pass doubles the reach of a path
            depth, above, reach = depth + depth[above], above[above], 2 * reach
        return ScoredTree(
            parents,
            depth,
            np.searchsorted(_EDGES, scores.ravel()),
            (index < lengths[:, None]).ravel(),
            width,
        )

    def kept(self, keep: Bool[np.ndarray, " BN"], proposal: Proposal) -> Proposal:
        """Return the proposal with these nodes alone; the parents of a node that is kept are."""
        rows, width = len(keep) // self.num_nodes, self.num_nodes
        keep = keep.reshape(rows, width)
        lengths = keep.sum(axis=1)
        new_width = int(lengths.max())
        if new_width == width and bool(
            (lengths == self.is_valid.reshape(rows, width).sum(1)).all()
        ):
            return proposal
        order = np.argsort(~keep, axis=1, kind="stable")[:, :new_width]
        chosen = order + width * np.arange(rows)[:, None]
        index = np.arange(new_width)
        new_index = (keep.cumsum(axis=1) - 1).ravel()
        parents = np.where(index < lengths[:, None], new_index[self.parents[chosen]], index - 1)
        parents[:, 0] = -1
        device = proposal.token_ids.device
        if proposal.topology.is_chain or bool((parents == index - 1).all()):
            topology = Topology.chain(new_width, device)
        else:
            topology = Topology(
                upload(parents, device),
                max_depth=min(proposal.topology.max_depth, new_width - 1),
                max_children=proposal.topology.max_children,
            )
        columns, kept_scores = upload(order, device), proposal.scores
        assert kept_scores is not None
        return replace(
            proposal,
            token_ids=proposal.token_ids.gather(1, columns),
            topology=topology,
            lengths=upload(lengths, device),
            scores=kept_scores.gather(1, columns),
            host_lengths=tuple(lengths.tolist()),
        )


class ScoreCalibration:
    """How often a node with a score was accepted once its parent was, by level.

    Args:
        num_levels: The longest path that is drafted.
        memory: Observed trees after which one counts 1/e.
    """

    def __init__(self, num_levels: int, memory: float) -> None:
        from scipy.optimize import isotonic_regression  # takes long to import

        self._monotone = isotonic_regression
        self._accepted, self._judged = np.zeros((2, num_levels, len(_SCORES)))
        self._kept = 1 - 1 / memory
        self._rates = np.tile(_SCORES, (num_levels, 1))

    def survival(self, tree: ScoredTree) -> Float[np.ndarray, " BN"]:
        """Return the chance of each node to be accepted with all nodes above it."""
        level = (tree.depth - 1).clip(min=0, max=len(self._rates) - 1)
        chance = np.where(tree.depth > 0, self._rates[level, tree.classes], 1.0)
        above, reach, deepest = tree.parents, 1, int(tree.depth.max())
        while reach < deepest:  # each pass doubles the reach of a path
            chance, above, reach = chance * chance[above], above[above], 2 * reach
        return chance

    def observe(
        self, tree: ScoredTree, verified: Bool[np.ndarray, " BN"], record: StepRecord
    ) -> None:
        """Learn from the nodes of a tree that were verified."""
        width, num_accepted = tree.num_nodes, np.array(record.num_accepted_tokens)
        rows = np.arange(len(num_accepted))
        parents = tree.parents.reshape(-1, width)
        may_follow = (verified & (tree.depth > 0)).reshape(-1, width)
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
        # What lies behind the end of an output is not judged.
        is_whole = np.array(record.num_new_tokens) > num_accepted
        is_judged = may_follow & on_path[tree.parents].reshape(-1, width) & is_whole[:, None]
        judged = is_judged.ravel().nonzero()[0]
        place = (tree.depth[judged] - 1).clip(max=len(self._rates) - 1), tree.classes[judged]
        self._accepted *= self._kept
        self._judged *= self._kept
        np.add.at(self._judged, place, 1.0)
        np.add.at(self._accepted, place, on_path[judged] * 1.0)

    def solve(self) -> None:
        """Let the rates follow what was observed; a higher score never counts as less likely."""
        weight = self._judged + _PRIOR
        rates = (self._accepted + _PRIOR * _SCORES) / weight
        for level, (rate, worth) in enumerate(zip(rates, weight, strict=True)):
            if (rate[1:] < rate[:-1]).any():
                rate = self._monotone(rate, weights=worth).x
            self._rates[level] = rate
