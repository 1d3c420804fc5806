"""An acceptance rule that accepts what a recording says would have been accepted."""

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance.base import AcceptanceSampler, prefix
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import SamplingBatch
from specresearch.simulation.machine import Machine
from specresearch.simulation.models import END, TOKEN
from specresearch.simulation.proposer import ReplayedProposal


class ReplayingRule(AcceptanceSampler):
    """Accepts the drafts of a `ReplayedProposal` that were not cut, and ends outputs in time."""

    lossless = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def refuses(self, kind: DraftKind) -> str | None:
        return None

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        assert isinstance(proposal, ReplayedProposal)
        self.machine.accept()
        num_accepted = torch.minimum(proposal.num_accepted, proposal.lengths - 1)
        is_last = num_accepted + 1 == proposal.num_left
        expected = proposal.expected
        if expected is not None:
            expected = expected[:, : proposal.topology.max_depth]
        return Verdict(
            path=prefix(num_accepted, proposal.topology.max_depth),
            num_accepted=num_accepted,
            next_token=torch.where(is_last, END, TOKEN),
            expected=expected,
        )
