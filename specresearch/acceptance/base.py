"""The interface of acceptance rules, which are pure functions of tensors, and what they share."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from specresearch.proposal import DraftKind, Proposal, Topology, Verdict
from specresearch.sampling import SamplingBatch, logits_to_probs
from specresearch.sampling_params import SamplingParams


@runtime_checkable
class AcceptanceSampler(Protocol):
    """A rule that decides which drafts to accept and which token comes after them.

    A rule that sets `capturable = True` runs as a CUDA graph. All that it draws on must then be its
    arguments' tensors and its attributes, which are numbers: what it decides on the host is decided
    once.

    A rule that sets `asks_target = False` accepts drafts whatever the target thinks of them, and
    gets no requests with a grammar.

    Attributes:
        lossless: The output has exactly the target's distribution, whatever the drafts. Other
            rules should be `LossySampler`s.
    """

    lossless: bool

    def refuses(self, kind: DraftKind) -> str | None:
        """Return why the rule cannot judge such drafts, to end a sentence, or None if it can."""
        ...

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict: ...


@runtime_checkable
class SelectiveSampler(AcceptanceSampler, Protocol):
    """A rule that cannot judge the drafts of every request."""

    def refuses_sampling(self, sampling: SamplingParams, kind: DraftKind) -> str | None:
        """Return why the rule cannot judge drafts for such a request, or None if it can.

        A request is refused when it is submitted, so that no step fails because of it.
        """
        ...


@runtime_checkable
class LossySampler(AcceptanceSampler, Protocol):
    """A lossy rule whose shift of the output distribution can be measured.

    It accepts drafts deterministically, and draws the token after the accepted path from p.
    """

    def accepts(
        self,
        proposal: Proposal,
        target_probs: Float[Tensor, "B N V"],
        sampling: SamplingBatch | None = None,
    ) -> Bool[Tensor, "B N V"] | None:
        """Return which tokens would be accepted after each node, drafted or not.

        Returns None if that is unknown.
        """
        ...


def drafts_on_path(proposal: Proposal) -> Bool[Tensor, "#B N N"]:
    """Return which drafts precede each node, for penalties: its ancestors except the root."""
    on_path = proposal.topology.ancestors.clone()
    on_path[:, :, 0] = False
    return on_path


def target_distribution(
    proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
) -> Float[Tensor, "B N V"]:
    """Return p after every node; penalties count the drafts above it."""
    on_path = drafts_on_path(proposal) if sampling.has_penalty else None
    return logits_to_probs(target_logits, sampling, proposal.token_ids, on_path)


def parents_of(proposal: Proposal) -> Int[Tensor, "B N"]:
    """Return the parent of each node in each row; the root counts as its own parent."""
    return proposal.topology.parents.clamp(min=0).expand(len(proposal.token_ids), -1)


def own_probability(probs: Float[Tensor, "B N V"], proposal: Proposal) -> Float[Tensor, "B N"]:
    """Return the probability of each node's token after its parent; the root's is meaningless."""
    row = torch.arange(len(probs), device=probs.device)[:, None]
    return probs[row, parents_of(proposal), proposal.token_ids]


def follow(
    chosen: Int[Tensor, "B N"], max_depth: int
) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """Walk from the root along the accepted children.

    Args:
        chosen: The accepted child of each node, -1 for none.

    Returns:
        The path and its number of drafts.
    """
    node = torch.zeros_like(chosen[:, :1])
    nodes = [node]
    for _ in range(max_depth):
        node = torch.where(node >= 0, chosen.gather(1, node.clamp(min=0)), -1)
        nodes.append(node)
    path = torch.cat(nodes, dim=1)
    return path, (path >= 0).sum(1) - 1


def longest_path(
    accepted: Bool[Tensor, "B N"], topology: Topology
) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """Find the deepest node that is accepted along with all its ancestors, the first of equals.

    Returns:
        The path to this node and its number of drafts.
    """
    if topology.is_chain:
        return longest_prefix(accepted[:, 1:])
    rows, num_nodes = accepted.shape
    index = torch.arange(num_nodes, device=accepted.device).expand(rows, -1)
    rejected = ~accepted & (index > 0)
    reached = ~(topology.ancestors & rejected[:, None]).any(2)
    depth = topology.depth.expand(rows, -1)
    end = depth.masked_fill(~reached, -1).argmax(1)[:, None]
    ancestors = topology.ancestors.expand(rows, -1, -1)
    on_path = ancestors.gather(1, end[:, :, None].expand(-1, -1, num_nodes))[:, 0]
    # Nodes off the path are written to an extra last column, which is dropped.
    column = torch.where(on_path, depth, topology.max_depth + 1)
    path = index.new_full((rows, topology.max_depth + 2), -1).scatter(1, column, index)[:, :-1]
    return path, depth.gather(1, end)[:, 0]


def longest_prefix(accepted: Bool[Tensor, "B M"]) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """Do the same as `longest_path` for a chain of M drafts: stop at the first rejection."""
    num_accepted = accepted.long().cumprod(1).sum(1)
    return prefix(num_accepted, accepted.shape[1]), num_accepted


def prefix(num_accepted: Int[Tensor, " B"], num_drafts: int) -> Int[Tensor, "B D"]:
    """Return the path of the first `num_accepted` drafts of a chain of `num_drafts`."""
    index = torch.arange(num_drafts + 1, device=num_accepted.device)
    return torch.where(index <= num_accepted[:, None], index, -1)


def node_rows(
    values: Shaped[Tensor, "B N V"], nodes: Int[Tensor, "B M"]
) -> Shaped[Tensor, "B M V"]:
    """Return the rows of `values` that belong to the given nodes."""
    return values[torch.arange(len(values), device=values.device)[:, None], nodes]
