"""How far a lossy rule moves the output from the target's distribution, from one step's tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.acceptance.base import (
    LossySampler,
    node_rows,
    own_probability,
    target_distribution,
)
from specresearch.metrics.shift import TokenShift
from specresearch.proposal import Proposal, Verdict
from specresearch.readback import Readback
from specresearch.sampling import SamplingBatch


@dataclass(frozen=True)
class OutputShift:
    """The shift of the output in one step.

    Column j belongs to the token emitted after node `path[:, j]`; it is 0 past the end of a path.

    Attributes:
        total_variation: Between the distribution e of that token under the rule and the target's
            p.
        kl: KL(e || p) in nats, infinite where the rule emits what the target never would.
        refusal: The probability that rejection sampling would have rejected the accepted draft,
            1 - min(1, p(x) / q(x)), or 1 - p(x) for a point mass; 0 where none was accepted.
        num_accepted: Accepted drafts.
    """

    total_variation: Float[Tensor, "B D"]
    kl: Float[Tensor, "B D"]
    refusal: Float[Tensor, "B D"]
    num_accepted: Int[Tensor, " B"]

    @property
    def refused_share(self) -> float:
        """The expected share of the accepted drafts that rejection sampling would have rejected."""
        return float(self.refusal.sum() / self.num_accepted.sum().clamp(min=1))


def output_shift(
    proposal: Proposal,
    target_probs: Float[Tensor, "B N V"],
    verdict: Verdict,
    accepts: Bool[Tensor, "B N V"] | None = None,
) -> OutputShift:
    """Measure the shift of a rule that accepts deterministically, and draws what follows from p.

    Given the drafts, e is one-hot where one was accepted, and p after the end of the path. This
    is exact for point masses. Sampled drafts average out: wherever a draft was offered, accepted
    or not, e(x) = q(x) accepts(x) + (1 - sum of q over accepted tokens) p(x). This is used for
    sampled chains; without `accepts`, and for trees, e is taken given the drafts, which
    overstates the shift on average.

    Summed over a request's output and averaged over requests, kl bounds the divergence of whole
    outputs from the target's.

    Args:
        accepts: `accepts[b, i, x]` tells whether the rule would accept token x after node i.
    """
    path = verdict.path
    next_node = F.pad(path, (0, 1), value=-1)[:, 1:]  # [B, D], the accepted child of each node
    has_next = next_node >= 0
    index = next_node.clamp(min=0)
    p_token = own_probability(target_probs, proposal).double().gather(1, index)
    if proposal.draft_probs is None:
        refusal = 1 - p_token
    else:
        q_token = own_probability(proposal.draft_probs, proposal).double().gather(1, index)
        refusal = torch.where(p_token < q_token, 1 - p_token / q_token, 0.0)
    if proposal.draft_probs is None or accepts is None or not proposal.topology.is_chain:
        total_variation, kl = 1 - p_token, -p_token.log()
        present = has_next
    else:
        nodes = path.clamp(min=0)
        total_variation, kl = _distance(
            node_rows(target_probs, nodes).double(),
            node_rows(proposal.draft_probs, nodes).double(),
            node_rows(accepts, nodes).double(),
        )
        offered = F.pad(proposal.acceptable, (0, 1))[:, 1:].gather(1, nodes)
        present = (path >= 0) & offered
    return OutputShift(
        total_variation.masked_fill(~present, 0.0),
        kl.masked_fill(~present, 0.0),
        refusal.masked_fill(~has_next, 0.0),
        verdict.num_accepted,
    )


def read_shift(
    rule: LossySampler,
    proposal: Proposal,
    target_logits: Float[Tensor, "B N V"],
    verdict: Verdict,
    sampling: SamplingBatch,
    readback: Readback,
) -> Callable[[Sequence[int]], tuple[TokenShift, ...]]:
    """Add the `output_shift` of one step to a readback.

    Returns:
        A function to call once it is fetched: it takes the number of first tokens of each row to
        report, and returns an entry per row.
    """
    probs = target_distribution(proposal, target_logits, sampling)
    shift = output_shift(proposal, probs, verdict, rule.accepts(proposal, probs, sampling))
    table = readback.add(torch.stack([shift.total_variation, shift.kl, shift.refusal], dim=1))

    def read(num_new: Sequence[int]) -> tuple[TokenShift, ...]:
        rows = zip(table.values.tolist(), num_new, strict=True)
        return tuple(TokenShift(*(tuple(column[:num]) for column in row)) for row, num in rows)

    return read


def _distance(
    p: Float[Tensor, "B D V"], q: Float[Tensor, "B D V"], accepts: Float[Tensor, "B D V"]
) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B D"]]:
    """Return total variation and KL divergence from p of the token that a sampled draft yields."""
    accepted = q * accepts
    emitted = accepted + (1 - accepted.sum(-1, keepdim=True)).clamp(min=0) * p
    total_variation = 0.5 * (emitted - p).abs().sum(-1)
    kl = (-torch.special.entr(emitted) - torch.special.xlogy(emitted, p)).sum(-1)
    return total_variation, kl.clamp(min=0)
