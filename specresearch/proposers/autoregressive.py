"""The baseline: no speculation, through the same loop as every method."""

from collections.abc import Sequence

from specresearch.batch import Batch
from specresearch.proposal import Proposal
from specresearch.proposers.base import Proposer


class Autoregressive(Proposer):
    """Proposes nothing, so that every step yields one token."""

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        return Proposal.empty(batch.roots)
