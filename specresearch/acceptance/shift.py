"""How far a lossy rule moves the output away from the target's distribution, from the tensors of one step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.acceptance.base import LossySampler, own_probability, target_distribution
from specresearch.metrics.shift import TokenShift
from specresearch.proposal import Proposal, Verdict
from specresearch.sampling import SamplingBatch


@dataclass(frozen=True)
class OutputShift:
    """What one step did to the output. Column j: the token emitted after node path[:, j]; 0 past the end of a path.

    total_variation: between the distribution e of that token under the rule and the target's p. kl: KL(e || p) in nats,
        infinite where the rule emits what the target never would.
    refusal: probability that rejection sampling would have refused the draft that the rule accepted there,
        1 - min(1, p(x) / q(x)), or 1 - p(x) for a point mass; 0 where none was accepted.
    num_accepted: accepted drafts.
    """

    total_variation: Float[Tensor, "B D"]
    kl: Float[Tensor, "B D"]
    refusal: Float[Tensor, "B D"]
    num_accepted: Int[Tensor, " B"]

    @property
    def refused_share(self) -> float:
        """The share of this step's accepted drafts that rejection sampling would have refused, in expectation."""
        return float(self.refusal.sum() / self.num_accepted.sum().clamp(min=1))


def output_shift(
    proposal: Proposal,
    target_probs: Float[Tensor, "B N V"],
    verdict: Verdict,
    accepts: Bool[Tensor, "B N V"] | None = None,
) -> OutputShift:
    """For a rule that decides without chance, and draws the token after the path from p.

    Given the drafts, e is one-hot where one was accepted, and p after the end of the path. For point masses that is all there is
    to say. Sampled drafts average out: accepts[b, i, x], whether the rule would accept x after node i, gives
    e(x) = q(x) accepts(x) + (1 - sum of q over accepted tokens) p(x) wherever a draft was offered, refused or not. It is used for
    sampled chains; without it, and for trees, e is taken given the drafts, which overstates the shift on average.

    Summed over a request's output and averaged over requests, kl bounds the divergence of whole outputs from the target's.
    """
    path, num_accepted = verdict.path, verdict.num_accepted
    following = F.pad(path, (0, 1), value=-1)[
        :, 1:
    ]  # [B, D], the draft accepted after each node of the path
    has_next, index = following >= 0, following.clamp(min=0)
    p_token = own_probability(target_probs, proposal).double().gather(1, index)
    if proposal.draft_probs is None:
        refusal = 1 - p_token
    else:
        q_token = own_probability(proposal.draft_probs, proposal).double().gather(1, index)
        refusal = torch.where(p_token < q_token, 1 - p_token / q_token, 0.0)
    if proposal.draft_probs is None or accepts is None or not proposal.topology.is_chain:
        total_variation, kl, present = 1 - p_token, -p_token.log(), has_next
    else:
        row = path.clamp(min=0)
        offered = F.pad(proposal.acceptable, (0, 1))[:, 1:].gather(1, row)
        total_variation, kl = _distance(
            *(_at(x, row).double() for x in (target_probs, proposal.draft_probs, accepts))
        )
        present = (path >= 0) & offered
    return OutputShift(
        total_variation.masked_fill(~present, 0.0),
        kl.masked_fill(~present, 0.0),
        refusal.masked_fill(~has_next, 0.0),
        num_accepted,
    )


def shift_of_tokens(
    rule: LossySampler,
    proposal: Proposal,
    target_logits: Float[Tensor, "B N V"],
    verdict: Verdict,
    sampling: SamplingBatch,
    num_new: Sequence[int],
) -> tuple[TokenShift, ...]:
    """`output_shift` of one step, on the host, for the first `num_new[b]` tokens of each row."""
    probs = target_distribution(proposal, target_logits, sampling)
    shift = output_shift(proposal, probs, verdict, rule.accepts(proposal, probs, sampling))
    table = torch.stack([shift.total_variation, shift.kl, shift.refusal], dim=1).tolist()  # sync
    return tuple(
        TokenShift(*(tuple(row[:n]) for row in rows))
        for rows, n in zip(table, num_new, strict=True)
    )


def _at(values: Tensor, row: Int[Tensor, "B D"]) -> Tensor:
    return values.gather(1, row[:, :, None].expand(-1, -1, values.shape[2]))


def _distance(
    p: Float[Tensor, "B D V"], q: Float[Tensor, "B D V"], accepts: Float[Tensor, "B D V"]
) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B D"]]:
    """Total variation and KL divergence of what a sampled draft leads to from p."""
    taken = q * accepts
    emitted = taken + (1 - taken.sum(-1, keepdim=True)).clamp(min=0) * p
    total_variation = 0.5 * (emitted - p).abs().sum(-1)
    kl = (-torch.special.entr(emitted) - torch.special.xlogy(emitted, p)).sum(-1)
    return total_variation, kl.clamp(min=0)
