"""What every acceptance rule is: a pure function of tensors."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.proposal import DraftKind, Proposal, Topology, Verdict
from specresearch.sampling import SamplingBatch, logits_to_probs


@runtime_checkable
class AcceptanceSampler(Protocol):
    """lossless: the output has exactly the target's distribution, whatever the drafts. Others should be `LossySampler`s."""

    lossless: bool

    def refuses(self, kind: DraftKind) -> str | None:
        """Why the rule cannot judge such drafts, as the end of a sentence; None when it can."""
        ...

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict: ...


@runtime_checkable
class LossySampler(AcceptanceSampler, Protocol):
    """A rule of which it can be said how far it moves the output: it decides without chance, and draws the token after the
    accepted path from p.
    """

    def accepts(
        self,
        proposal: Proposal,
        target_probs: Float[Tensor, "B N V"],
        sampling: SamplingBatch | None = None,
    ) -> Bool[Tensor, "B N V"] | None:
        """Which tokens would be accepted after each node, drafted or not; None where that is not known."""
        ...


def drafts_on_path(proposal: Proposal) -> Bool[Tensor, "#B N N"]:
    """Which nodes count as context that is not committed yet, for penalties: the ancestors of each row but the root."""
    on_path = proposal.topology.ancestors.clone()
    on_path[:, :, 0] = False
    return on_path


def target_distribution(
    proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
) -> Float[Tensor, "B N V"]:
    """p after every node, the drafts above it counted by penalties."""
    on_path = drafts_on_path(proposal) if sampling.has_penalty else None
    return logits_to_probs(target_logits, sampling, proposal.token_ids, on_path)


def parents_of(proposal: Proposal) -> Int[Tensor, "B N"]:
    """The parent of each node in each row; the root counts as its own."""
    return proposal.topology.parents.clamp(min=0).expand(len(proposal.token_ids), -1)


def own_probability(probs: Float[Tensor, "B N V"], proposal: Proposal) -> Float[Tensor, "B N"]:
    """What the parent's row of `probs` says of each node's token; the root's column means nothing."""
    row = torch.arange(len(probs), device=probs.device)[:, None]
    return probs[row, parents_of(proposal), proposal.token_ids]


def follow(
    chosen: Int[Tensor, "B N"], max_depth: int
) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """Walk from the root along `chosen` (accepted child of each node, -1 = none): the path and its number of drafts."""
    node = torch.zeros_like(chosen[:, :1])
    path = [node]
    for _ in range(max_depth):
        node = torch.where(node >= 0, chosen.gather(1, node.clamp(min=0)), -1)
        path.append(node)
    joined = torch.cat(path, dim=1)
    return joined, (joined >= 0).sum(1) - 1


def longest_path(
    accepted: Bool[Tensor, "B N"], topology: Topology
) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """The path to the deepest node accepted along with all above it, the first of equals, and its number of drafts."""
    if topology.is_chain:
        return longest_prefix(accepted[:, 1:])
    rows, num_nodes = accepted.shape
    index = torch.arange(num_nodes, device=accepted.device).expand(rows, -1)
    refused = ~accepted & (index > 0)
    reached = ~(topology.ancestors & refused[:, None]).any(2)
    depth = topology.depth.expand(rows, -1)
    end = depth.masked_fill(~reached, -1).argmax(1)[:, None]
    on_path = topology.ancestors.expand(rows, -1, -1).gather(
        1, end[:, :, None].expand(-1, -1, num_nodes)
    )[:, 0]
    column = torch.where(on_path, depth, topology.max_depth + 1)
    path = index.new_full((rows, topology.max_depth + 2), -1).scatter(1, column, index)[:, :-1]
    return path, depth.gather(1, end)[:, 0]


def longest_prefix(accepted: Bool[Tensor, "B M"]) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """`longest_path` for a chain of M drafts: everything before the first refusal."""
    num_accepted = accepted.long().cumprod(1).sum(1)
    return prefix(num_accepted, accepted.shape[1]), num_accepted


def prefix(num_accepted: Int[Tensor, " B"], num_drafts: int) -> Int[Tensor, "B D"]:
    """The path of the first `num_accepted` drafts of a chain of `num_drafts`."""
    index = torch.arange(num_drafts + 1, device=num_accepted.device)
    return torch.where(index <= num_accepted[:, None], index, -1)
