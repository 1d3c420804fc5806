"""The nodes that a dynamic tree considers, and the choice of the most confident ones."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.proposal import Proposal, Topology, upload


@dataclass(frozen=True)
class Candidates:
    """Every node considered, level by level.

    Attributes:
        confidence: Logarithm of the probability of the path.
        scores: Probability of the node given its parent.
        parents: Index of the parent among the candidates plus one; 0 is the root.
    """

    tokens: Int[Tensor, "B P"]
    confidence: Float[Tensor, "B P"]
    scores: Float[Tensor, "B P"]
    parents: Int[Tensor, "B P"]

    def extended(self, new: "Candidates") -> "Candidates":
        """Return these candidates and then the new ones."""
        names = [field.name for field in fields(self)]
        return Candidates(
            **{name: torch.cat([getattr(self, name), getattr(new, name)], dim=1) for name in names}
        )

    def best(
        self, batch: Batch, num_kept: Sequence[int], *, max_depth: int, max_children: int
    ) -> Proposal:
        """Return the tree of the `num_kept[b]` most confident candidates of each row.

        Padding comes last, as a chain that nobody reads.
        """
        num_candidates = self.tokens.shape[1]
        num_nodes = max(num_kept)
        num_drafts = upload(num_kept, batch.device)
        best = self.confidence.sort(dim=1, descending=True, stable=True).indices[:, :num_nodes]
        index = torch.arange(num_nodes, device=batch.device)
        is_kept = index < num_drafts[:, None]
        # Back in the order of the candidates, in which parents come before their children.
        order = torch.where(is_kept, best, num_candidates + index).argsort(dim=1)
        chosen = best.gather(1, order)
        new_index = batch.roots.new_zeros((len(batch), num_candidates + 1))
        new_index.scatter_(1, chosen + 1, index.expand_as(chosen) + 1)
        parents = new_index.gather(1, self.parents.gather(1, chosen))
        parents = torch.where(is_kept, parents, index)
        parents = torch.where(parents <= index, parents, 0)  # only if confidences are all zero
        root_parents = torch.full_like(batch.roots, -1)
        root_scores = torch.ones_like(batch.roots, dtype=self.scores.dtype)
        return Proposal(
            token_ids=torch.cat([batch.roots, self.tokens.gather(1, chosen)], dim=1),
            topology=Topology(
                torch.cat([root_parents, parents], dim=1),
                max_depth=max_depth,
                max_children=max_children,
            ),
            lengths=num_drafts + 1,
            scores=torch.cat([root_scores, self.scores.gather(1, chosen)], dim=1),
            host_lengths=tuple(num + 1 for num in num_kept),
        )
