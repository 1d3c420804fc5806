"""An acceptance rule that accepts what a recording says would have been accepted."""

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance.base import AcceptanceSampler, prefix
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import SamplingBatch
from specresearch.simulation.machine import Machine
from specresearch.simulation.models import END, TOKEN, known_lengths
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
        depth = proposal.topology.max_depth
        num_accepted, next_tokens = [], []
        lengths = known_lengths(proposal)
        rows = zip(proposal.num_accepted, lengths, proposal.num_left, strict=True)
        for accepted, length, num_left in rows:
            number = min(accepted, length - 1)
            num_accepted.append(number)
            next_tokens.append(END if number + 1 == num_left else TOKEN)
        on_device = torch.tensor(num_accepted)
        return Verdict(
            path=prefix(on_device, depth),
            num_accepted=on_device,
            next_token=torch.tensor(next_tokens),
            expected=None if proposal.expected is None else proposal.expected[:, :depth],
        )
