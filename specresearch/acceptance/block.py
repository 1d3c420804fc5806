"""Block verification judges the drafts of a chain together, and keeps at least as many of them.

Sun et al. (arXiv 2403.10444).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.acceptance.base import (
    node_rows,
    own_probability,
    prefix,
    target_distribution,
)
from specresearch.acceptance.greedy import accept_argmax
from specresearch.drawing import draw
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch


class Block:
    """Lossless at every temperature, for chains.

    Drafts may be sampled or point masses; of point masses it keeps as many as rejection sampling.
    """

    lossless = True
    capturable = True

    def refuses(self, kind: DraftKind) -> str | None:
        if kind.trees:
            return "they may branch, and block verification is defined for chains only"
        return None

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        if sampling.all_greedy:
            return accept_argmax(proposal, target_logits, sampling)
        probs = target_distribution(proposal, target_logits, sampling)
        uniforms = sampling.uniforms(ACCEPT_STREAM, proposal.topology.num_nodes)
        return accept_block(proposal, probs, uniforms)


def accept_block(
    proposal: Proposal, target_probs: Float[Tensor, "B N V"], uniforms: Float[Tensor, "B N"]
) -> Verdict:
    """Apply the rule to probabilities.

    P_i = min(1, P_{i-1} p(x_i) / q(x_i)) from P_0 = 1 is the probability of keeping the first i
    drafts, given them, and S_i = sum of max(P_i p - q, 0) after node i that of keeping exactly
    those. Node i passes if u_i < S_i / (S_i + 1 - P_i), the last draft of a row if u < P. The last
    node that passes ends the path, whatever failed before it; after it comes a sample of
    max(P_i p - q, 0), or of p when every draft was kept. A token with p = 0 makes P zero from
    there on.

    Args:
        uniforms: In double precision. Column 0 draws the last token, column i decides on node i.
    """
    assert proposal.topology.is_chain
    p, q = target_probs, proposal.draft_probs
    node = torch.arange(proposal.topology.num_nodes, device=p.device)
    last = proposal.acceptable[:, 1:].long().cumprod(1).sum(1, keepdim=True)  # [B, 1]
    p_token = own_probability(p, proposal)[:, 1:].double()
    q_token = torch.ones_like(p_token)
    if q is not None:
        q_token = own_probability(q, proposal)[:, 1:].double()
    kept = _kept(p_token, q_token)  # [B, N], P
    only = torch.zeros_like(kept)  # [B, N], S; that of the last node is never used
    if q is None:
        only[:, :-1] = kept[:, :-1] * (1 - p_token)
    else:
        only[:, :-1] = _residual(kept[:, :-1], p[:, :-1], q[:, :-1]).sum(-1)
    below = only + 1 - kept
    chance = torch.where(below > 0, only / below, 1.0)
    chance = torch.where(node == last, kept, chance)
    passes = (uniforms < chance) & (node <= last)
    path, num_accepted = up_to_last(passes[:, 1:])

    end = num_accepted[:, None]
    p_end = node_rows(p, end)
    if q is None:
        next_draft = proposal.token_ids.gather(1, (end + 1).clamp(max=len(node) - 1))
        residual = p_end.scatter(2, next_draft[:, :, None], 0.0)
    else:
        residual = _residual(kept.gather(1, end), p_end, node_rows(q, end))
    # The residual is zero when p == q up to rounding: the rejection was a rounding error too.
    is_rejected = (end < last)[:, :, None] & (residual.sum(2, keepdim=True) > 0)
    weights = torch.where(is_rejected, residual, p_end)
    expected = torch.where(kept > 0, 1 - only / kept, 0.0)[:, :-1]
    return Verdict(path, num_accepted, draw(weights[:, 0], uniforms[:, 0]), expected)


def up_to_last(passes: Bool[Tensor, "B M"]) -> tuple[Int[Tensor, "B D"], Int[Tensor, " B"]]:
    """Return the path to the last draft that passes, and its number of drafts."""
    num_drafts = passes.shape[1]
    number = torch.arange(num_drafts + 1, device=passes.device)
    num_accepted = (F.pad(passes, (1, 0)) * number).amax(1)
    return prefix(num_accepted, num_drafts), num_accepted


def _kept(p_token: Float[Tensor, "B M"], q_token: Float[Tensor, "B M"]) -> Float[Tensor, "B N"]:
    """Return P of every node, root included."""
    columns = [p_token.new_ones(len(p_token))]
    for p, q in zip(p_token.unbind(1), q_token.unbind(1), strict=True):
        weight = columns[-1] * p
        columns.append(torch.where(weight < q, weight / q, (weight > 0).to(weight.dtype)))
    return torch.stack(columns, dim=1)


def _residual(
    kept: Float[Tensor, "B M"], p: Float[Tensor, "B M V"], q: Float[Tensor, "B M V"]
) -> Float[Tensor, "B M V"]:
    return (kept.to(p.dtype)[:, :, None] * p - q).clamp(min=0)
