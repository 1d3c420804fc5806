"""What every acceptance rule is: a pure function of tensors."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import SamplingBatch


@runtime_checkable
class AcceptanceSampler(Protocol):
    """lossless: the output has exactly the target's distribution, whatever the drafts."""

    lossless: bool

    def refuses(self, kind: DraftKind) -> str | None:
        """Why the rule cannot judge such drafts, as the end of a sentence; None when it can."""
        ...

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict: ...


def drafts_on_path(proposal: Proposal) -> Bool[Tensor, "#B N N"]:
    """Which nodes count as context that is not committed yet, for penalties: the ancestors of each row but the root."""
    on_path = proposal.topology.ancestors.clone()
    on_path[:, :, 0] = False
    return on_path


def follow(chosen: Int[Tensor, "B N"], max_depth: int) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """Walk from the root along `chosen` (accepted child of each node, -1 = none): the path and its number of drafts."""
    node = torch.zeros_like(chosen[:, :1])
    path = [node]
    for _ in range(max_depth):
        node = torch.where(node >= 0, chosen.gather(1, node.clamp(min=0)), -1)
        path.append(node)
    joined = torch.cat(path, dim=1)
    return joined, (joined >= 0).sum(1) - 1


def longest_prefix(accepted: Bool[Tensor, "B M"]) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """`follow` for a chain of M drafts: everything before the first refusal."""
    num_accepted = accepted.long().cumprod(1).sum(1)
    index = torch.arange(accepted.shape[1] + 1, device=accepted.device)
    return torch.where(index <= num_accepted[:, None], index, -1), num_accepted
