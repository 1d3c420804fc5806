"""Proposals for some rows of a batch, put together to one for all."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from specresearch.batch import Batch
from specresearch.proposal import Proposal, Topology, upload
from specresearch.proposers.host_tree import padding_parents


class Share:
    """A proposal, the rows of it that count (`own`), and which rows of the batch they are (`rows`)."""

    def __init__(self, proposal: Proposal, asked: Sequence[int], spoke: Sequence[bool]) -> None:
        self.proposal = proposal
        self.own = [i for i, has_drafts in enumerate(spoke) if has_drafts]
        self.rows = [asked[i] for i in self.own]


def some(batch: Batch, rows: Sequence[int]) -> Batch:
    """These rows of a batch."""
    if len(rows) == len(batch):
        return batch
    return Batch([batch.rows[row] for row in rows], batch.device, batch.vocab_size, batch.decode)


def merge(batch: Batch, shares: Sequence[Share]) -> Proposal:
    """One proposal with every share in its rows; the rows of none are empty."""
    width = max(share.proposal.topology.num_nodes for share in shares)
    token_ids = F.pad(batch.roots, (0, width - 1))
    proposals = [share.proposal for share in shares]
    draft_probs = scores = probe = None
    sampled = [proposal.draft_probs for proposal in proposals if proposal.draft_probs is not None]
    if sampled:
        draft_probs = sampled[0].new_zeros((len(batch), width, batch.vocab_size))
        _fill(draft_probs, shares, [_probs_of(share, batch) for share in shares])
    own_scores = [proposal.scores for proposal in proposals if proposal.scores is not None]
    if len(own_scores) == len(shares):
        scores = torch.ones_like(token_ids, dtype=own_scores[0].dtype)
        _fill(scores, shares, own_scores)
    if any(proposal.probe is not None for proposal in proposals):
        probe = torch.zeros_like(token_ids, dtype=torch.bool)
        _fill(probe, shares, [_probe_of(proposal) for proposal in proposals])
    return Proposal(
        _fill(token_ids, shares, [proposal.token_ids for proposal in proposals]),
        _merge_topologies(shares, len(batch), width, batch.device),
        _fill(
            torch.ones_like(batch.roots),
            shares,
            [proposal.lengths[:, None] for proposal in proposals],
        )[:, 0],
        draft_probs,
        _is_with_replacement(proposals),
        scores,
        probe,
        _merge_host_lengths(shares, len(batch)),
    )


def _fill(merged: Tensor, shares: Sequence[Share], parts: Sequence[Tensor]) -> Tensor:
    """Write the rows that count of every part, [b, n, ...], into [B, N, ...]."""
    for share, part in zip(shares, parts, strict=True):
        rows, own = upload(share.rows, merged.device), upload(share.own, merged.device)
        merged[rows, : part.shape[1]] = part[own].to(merged.dtype)
    return merged


def _probs_of(share: Share, batch: Batch) -> Float[Tensor, "b n V"]:
    """A chain of point masses is sampled from one-hot rows. Greedy rows accept by the target's argmax whatever q is."""
    part = share.proposal
    if part.draft_probs is not None:
        return part.draft_probs
    if part.topology.is_chain:
        return F.pad(F.one_hot(part.token_ids[:, 1:], batch.vocab_size), (0, 0, 0, 1)).float()
    assert all(batch.rows[row].request.sampling.is_greedy for row in share.rows), (
        "a tree neither sampled nor greedy"
    )
    return torch.zeros((*part.token_ids.shape, batch.vocab_size), device=batch.device)


def _probe_of(proposal: Proposal) -> Bool[Tensor, "b n"]:
    nothing = torch.zeros_like(proposal.token_ids, dtype=torch.bool)
    return nothing if proposal.probe is None else proposal.probe.expand_as(nothing)


def _is_with_replacement(proposals: Sequence[Proposal]) -> bool:
    ways = {
        p.with_replacement
        for p in proposals
        if p.draft_probs is not None and not p.topology.is_chain
    }
    assert len(ways) <= 1, "trees sampled with and without replacement in one proposal"
    return ways == {True}


def _merge_host_lengths(shares: Sequence[Share], num_rows: int) -> tuple[int, ...] | None:
    lengths = [1] * num_rows
    for share in shares:
        known = share.proposal.host_lengths
        if known is None:
            return None
        for row, i in zip(share.rows, share.own, strict=True):
            lengths[row] = known[i]
    return tuple(lengths)


def _merge_topologies(
    shares: Sequence[Share], num_rows: int, width: int, device: torch.device
) -> Topology:
    topologies = [share.proposal.topology for share in shares]
    if len(topologies) == 1 and len(topologies[0].parents) == 1:
        return topologies[0]
    if all(topology.is_chain for topology in topologies):
        return Topology.chain(width, device)
    parents = upload([[-1, *padding_parents(1, width)]], device).repeat(num_rows, 1)
    padded = []
    for share, topology in zip(shares, topologies, strict=True):
        padding = upload([padding_parents(topology.num_nodes, width)], device, torch.long)
        rows = len(share.proposal.lengths)
        padded.append(
            torch.cat([topology.parents.expand(rows, -1), padding.expand(rows, -1)], dim=1)
        )
    return Topology(
        _fill(parents, shares, padded),
        max_depth=max((width - 1).bit_length(), *(topology.max_depth for topology in topologies)),
        max_children=max(2, *(t.max_children + (t.num_nodes < width) for t in topologies)),
    )
