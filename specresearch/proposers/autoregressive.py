"""No speculation: the baseline, through the same loop as every method."""

from collections.abc import Sequence

from specresearch.batch import Batch
from specresearch.proposal import Proposal
from specresearch.proposers.base import Proposer


class Autoregressive(Proposer):
    """Proposes nothing: every step is one token."""

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        return Proposal.empty(batch.roots)
