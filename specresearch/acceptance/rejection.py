"""Speculative sampling: accept with probability min(1, p/q), else sample from the residual of p.

Chains: Leviathan et al. (arXiv 2211.17192), Chen et al. (2302.01318). Trees: SpecInfer
(2305.09781) with replacement, Sequoia (2402.12374) without. Deterministic drafts follow the same
rule with a one-hot q.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.acceptance.base import (
    longest_path,
    node_rows,
    own_probability,
    target_distribution,
)
from specresearch.acceptance.greedy import accept_argmax
from specresearch.drawing import draw
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch


class Rejection:
    """Lossless at every temperature. A chain is a tree whose nodes have at most one child."""

    lossless = True
    capturable = True

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

    Siblings are tried in index order against p, the target's probabilities less what the earlier
    siblings took. A token with p = 0 is never accepted.

    Args:
        uniforms: In double precision. Column 0 draws the last token, column i decides on node i.
    """
    topology = proposal.topology
    if topology.is_chain or proposal.draft_probs is None:
        accepted = _accept_points(proposal, target_probs, uniforms)
        residual = _residual
    else:
        accepted, residual = _accept_samples(proposal, target_probs, uniforms)
    path, num_accepted = longest_path(accepted, topology)
    end = path.gather(1, num_accepted[:, None])  # [B, 1]
    p_end = node_rows(target_probs, end)[:, 0]
    left = residual(proposal, p_end, end)
    # Nothing is left when p == q up to rounding: the rejection was a rounding error too.
    weights = torch.where(left.sum(-1, keepdim=True) > 0, left, p_end)
    expected = _expected_acceptance(proposal, target_probs) if topology.is_chain else None
    return Verdict(path, num_accepted, draw(weights, uniforms[:, 0]), expected)


def _accept_points(
    proposal: Proposal, p: Float[Tensor, "B N V"], uniforms: Float[Tensor, "B N"]
) -> Bool[Tensor, "B N"]:
    """Return the first accepted child of every node, for chains and for point masses.

    A rejected point mass takes its own token's probability and nothing else, so p(x) after some
    rejections is p(x) over one minus the sum of what they took.
    """
    acceptable = proposal.acceptable
    p_token = own_probability(p, proposal).double()
    if proposal.draft_probs is not None:
        q_token = own_probability(proposal.draft_probs, proposal).double()
        return acceptable & (uniforms * q_token < p_token)
    if proposal.topology.is_chain:
        return acceptable & (uniforms < p_token)
    earlier = proposal.topology.earlier_siblings & acceptable[:, None]  # [B, N, N]
    tokens = proposal.token_ids
    is_repeated = (earlier & (tokens[:, :, None] == tokens[:, None])).any(2)
    p_token = p_token.masked_fill(is_repeated, 0.0)
    left = 1 - (earlier * p_token[:, None]).sum(2)
    accepted = acceptable & (uniforms * left < p_token)
    return accepted & ~(earlier & accepted[:, None]).any(2)


def _residual(
    proposal: Proposal, p: Float[Tensor, "B V"], end: Int[Tensor, "B 1"]
) -> Float[Tensor, "B V"]:
    """Return what the rejected children of `end` left of p, for chains and for point masses."""
    if proposal.draft_probs is None:
        is_child = proposal.topology.parents == end
        return _without(p, proposal.token_ids, is_child & proposal.acceptable)
    last = proposal.acceptable.shape[1] - 1
    next_node = (end + 1).clamp(max=last)
    is_rejected = (end < last) & proposal.acceptable.gather(1, next_node)
    return torch.where(is_rejected, (p - node_rows(proposal.draft_probs, end)[:, 0]).relu_(), p)


def _without(
    weights: Float[Tensor, "*rows V"], tokens: Int[Tensor, "*rows n"], mask: Bool[Tensor, "*rows n"]
) -> Float[Tensor, "*rows V"]:
    """Return the weights with those of the masked tokens set to 0."""
    num_tokens = weights.shape[-1]
    index = torch.where(mask, tokens, num_tokens)  # a column that is dropped again
    return F.pad(weights, (0, 1)).scatter(-1, index, 0.0)[..., :num_tokens]


def _accept_samples(
    proposal: Proposal, target_probs: Float[Tensor, "B N V"], uniforms: Float[Tensor, "B N"]
) -> tuple[Bool[Tensor, "B N"], Callable[..., Float[Tensor, "B V"]]]:
    """Return the first accepted child of every node of a sampled tree, and the residual function.

    Round r tries the r-th child of each node that has so many: at most (N - 1) / r nodes.
    """
    tokens, topology = proposal.token_ids, proposal.topology
    assert proposal.draft_probs is not None
    children = topology.children.expand(len(tokens), -1, -1)
    order = (children >= 0).sum(2).argsort(dim=1, descending=True, stable=True)  # nodes, [B, N]
    children = children.gather(1, order[:, :, None].expand_as(children))
    p, q = node_rows(target_probs, order), node_rows(proposal.draft_probs, order)
    accepted = torch.zeros_like(proposal.acceptable)
    is_open = torch.ones_like(accepted)  # no child accepted so far, by position in the order
    finished: list[Tensor] = []  # p of nodes that have no more children
    for rank in range(topology.max_children):
        num_left = (topology.num_nodes - 1) // (rank + 1)
        finished.append(p[:, num_left:])
        p, q, is_open = p[:, :num_left], q[:, :num_left], is_open[:, :num_left]
        child = children[:, :num_left, rank]
        index = child.clamp(min=0)
        is_tried = (child >= 0) & proposal.acceptable.gather(1, index) & is_open
        token = tokens.gather(1, index)[:, :, None]
        p_token, q_token = p.gather(2, token).double(), q.gather(2, token).double()
        passes = is_tried & (uniforms.gather(1, index)[:, :, None] * q_token < p_token)[:, :, 0]
        accepted = accepted.scatter(1, torch.where(passes, child, 0), True)  # the root is no draft
        is_open = is_open & ~passes
        p, q = _reject(p, q, token, (is_tried & ~passes)[:, :, None], proposal.with_replacement)
    finished.append(p)
    left = torch.cat(finished[::-1], dim=1)
    return accepted, lambda proposal, p, end: node_rows(
        left, (order == end).long().argmax(1, keepdim=True)
    )[:, 0]


def _reject(
    p: Float[Tensor, "B M V"],
    q: Float[Tensor, "B M V"],
    token: Int[Tensor, "B M 1"],
    is_rejected: Bool[Tensor, "B M 1"],
    with_replacement: bool,
) -> tuple[Float[Tensor, "B M V"], Float[Tensor, "B M V"]]:
    """Return p and q of each node once its child with this token was rejected."""
    residual = (p - q).relu()
    total = residual.sum(-1, keepdim=True)
    # The residual is zero when p == q up to rounding: the rejection was a rounding error too.
    p = torch.where(is_rejected & (total > 0), residual / total, p)
    if not with_replacement:
        remaining = q.scatter(2, token, 0.0)
        total = remaining.sum(-1, keepdim=True)
        q = torch.where(is_rejected, remaining / torch.where(total > 0, total, 1.0), q)
    return p, q


def _expected_acceptance(proposal: Proposal, p: Float[Tensor, "B N V"]) -> Float[Tensor, "B M"]:
    """Return the sum of min(p, q) at each draft of a chain; a deterministic draft has one-hot q."""
    if proposal.draft_probs is not None:
        return torch.minimum(p[:, :-1], proposal.draft_probs[:, :-1]).sum(-1)
    return p[:, :-1].gather(2, proposal.token_ids[:, 1:, None])[:, :, 0]
