"""Speculative sampling: accept with probability min(1, p/q), else sample from the residual of p.

Chains: Leviathan et al. (arXiv 2211.17192), Chen et al. (2302.01318). Trees: SpecInfer
(2305.09781) with replacement, Sequoia (2402.12374) without. Deterministic drafts follow the same
rule with a one-hot q.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.acceptance.base import follow, longest_prefix, node_rows, target_distribution
from specresearch.acceptance.greedy import accept_argmax
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch, draw


class Rejection:
    """Lossless at every temperature. A chain is a tree whose nodes have at most one child."""

    lossless = True

    def refuses(self, kind: DraftKind) -> str | None:
        return None

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        if sampling.all_greedy:
            return accept_argmax(proposal, target_logits, sampling)
        probs = target_distribution(proposal, target_logits, sampling)
        uniforms = sampling.uniforms(ACCEPT_STREAM, proposal.topology.num_nodes)
        return accept_by_rejection(proposal, probs, uniforms)


def accept_by_rejection(
    proposal: Proposal, target_probs: Float[Tensor, "B N V"], uniforms: Float[Tensor, "B N"]
) -> Verdict:
    """Apply the rule to probabilities.

    Siblings are tried in index order at every node at once: round r tries the r-th child of each
    node against p, the target's probabilities less what the earlier siblings took. A token with
    p = 0 is never accepted.

    Args:
        uniforms: In double precision. Column 0 draws the last token, column i decides on node i.
    """
    tokens, topology = proposal.token_ids, proposal.topology
    children = topology.children.expand(len(tokens), -1, -1)
    p, q = target_probs, proposal.draft_probs
    chosen = torch.full_like(tokens, -1)
    last_tried = torch.full_like(tokens, -1)  # the child whose rejection p does not reflect yet
    for rank in range(topology.max_children):
        if rank > 0:
            p, q = _reject(p, q, tokens, last_tried, proposal.with_replacement)
            last_tried = torch.full_like(last_tried, -1)
        child = children[:, :, rank]
        index = child.clamp(min=0)
        usable = (child >= 0) & proposal.acceptable.gather(1, index) & (chosen < 0)
        token = tokens.gather(1, index)[:, :, None]
        p_token = p.gather(2, token)[:, :, 0].double()
        q_token = torch.ones_like(p_token) if q is None else q.gather(2, token)[:, :, 0].double()
        accepted = usable & (uniforms.gather(1, index) * q_token < p_token)
        chosen = torch.where(accepted, child, chosen)
        last_tried = torch.where(usable & ~accepted, child, last_tried)
    if topology.is_chain:
        path, num_accepted = longest_prefix(chosen[:, :-1] >= 0)
    else:
        path, num_accepted = follow(chosen, topology.max_depth)
    end = path.gather(1, num_accepted[:, None])  # [B, 1]
    p_end = node_rows(p, end)
    q_end = None if q is None else node_rows(q, end)
    p_end, _ = _reject(p_end, q_end, tokens, last_tried.gather(1, end), proposal.with_replacement)
    expected = _expected_acceptance(proposal, target_probs) if topology.is_chain else None
    return Verdict(path, num_accepted, draw(p_end[:, 0], uniforms[:, 0]), expected)


def _expected_acceptance(proposal: Proposal, p: Float[Tensor, "B N V"]) -> Float[Tensor, "B M"]:
    """Return the sum of min(p, q) at each draft of a chain; a deterministic draft has one-hot q."""
    if proposal.draft_probs is not None:
        return torch.minimum(p[:, :-1], proposal.draft_probs[:, :-1]).sum(-1)
    return p[:, :-1].gather(2, proposal.token_ids[:, 1:, None])[:, :, 0]


def _reject(
    p: Float[Tensor, "B M V"],
    q: Float[Tensor, "B M V"] | None,
    tokens: Int[Tensor, "B N"],
    rejected: Int[Tensor, "B M"],
    with_replacement: bool,
) -> tuple[Float[Tensor, "B M V"], Float[Tensor, "B M V"] | None]:
    """Return p and q of each node after its child `rejected` was rejected; -1 for no change."""
    is_rejected: Bool[Tensor, "B M 1"] = (rejected >= 0)[:, :, None]
    token = tokens.gather(1, rejected.clamp(min=0))[:, :, None]
    residual = p.scatter(2, token, 0.0) if q is None else (p - q).clamp(min=0)
    total = residual.sum(-1, keepdim=True)
    # The residual is zero when p == q up to rounding: the rejection was a rounding error too.
    residual = torch.where(total > 0, residual / total, p)
    p = torch.where(is_rejected, residual, p)
    if q is not None and not with_replacement:
        remaining = q.scatter(2, token, 0.0)
        total = remaining.sum(-1, keepdim=True)
        q = torch.where(is_rejected, remaining / torch.where(total > 0, total, 1.0), q)
    return p, q
