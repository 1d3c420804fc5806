"""Proposals for some rows of a batch, and their merge into one proposal for all rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from specresearch.batch import Batch
from specresearch.proposal import Proposal, Topology, upload
from specresearch.proposers.host_tree import padding_parents
from specresearch.request import RequestState


@dataclass(frozen=True)
class PartialProposal:
    """A proposal for some rows of a batch.

    Attributes:
        batch_rows: The rows of the batch that it drafts for.
        proposal_rows: The row of `proposal` for each of them; its other rows are ignored.
    """

    proposal: Proposal
    batch_rows: Sequence[int]
    proposal_rows: Sequence[int]


def propose_for(
    batch: Batch,
    budget: Sequence[int],
    can_draft: Callable[[RequestState], bool],
    propose: Callable[[Batch, Sequence[int]], Proposal],
) -> Proposal:
    """Return what `propose` drafts for the rows that may and can draft; the others stay empty."""
    rows: list[int] = []
    if any(budget):
        allowed = [row for row, number in enumerate(budget) if number > 0]
        rows = [row for row in allowed if can_draft(batch.rows[row])]
    if not rows:
        return Proposal.empty(batch.roots)
    if len(rows) == len(batch):
        return propose(batch, budget)
    proposal = propose(batch.select(rows), [budget[row] for row in rows])
    return merge(batch, [PartialProposal(proposal, rows, range(len(rows)))])


def merge(batch: Batch, parts: Sequence[PartialProposal]) -> Proposal:
    """Merge partial proposals into one for the whole batch; rows of no part stay empty."""
    proposals = [part.proposal for part in parts]
    width = max(proposal.topology.num_nodes for proposal in proposals)
    token_ids = F.pad(batch.roots, (0, width - 1))
    lengths = torch.ones_like(batch.roots)
    return Proposal(
        token_ids=_fill(token_ids, parts, [proposal.token_ids for proposal in proposals]),
        topology=_merge_topologies(parts, len(batch), width, batch.device),
        lengths=_fill(lengths, parts, [proposal.lengths[:, None] for proposal in proposals])[:, 0],
        draft_probs=_merge_draft_probs(batch, parts, width),
        with_replacement=_is_with_replacement(proposals),
        scores=_merge_scores(batch, parts, width),
        probe=_merge_probes(batch, parts, width),
        host_lengths=_merge_host_lengths(parts, len(batch)),
    )


def _fill(merged: Tensor, parts: Sequence[PartialProposal], values: Sequence[Tensor]) -> Tensor:
    """Write the rows of every part, [b, n, ...], into [B, N, ...]."""
    for part, rows in zip(parts, values, strict=True):
        target = upload(part.batch_rows, merged.device)
        source = upload(part.proposal_rows, merged.device)
        merged[target, : rows.shape[1]] = rows[source].to(merged.dtype)
    return merged


def _merge_draft_probs(
    batch: Batch, parts: Sequence[PartialProposal], width: int
) -> Float[Tensor, "B N V"] | None:
    for part in parts:
        probs = part.proposal.draft_probs
        if probs is not None:
            merged = probs.new_zeros((len(batch), width, batch.vocab_size))
            return _fill(merged, parts, [_probs_of(part, batch) for part in parts])
    return None


def _probs_of(part: PartialProposal, batch: Batch) -> Float[Tensor, "b n V"]:
    """Return the draft probabilities of a part; a chain of point masses has one-hot ones."""
    proposal = part.proposal
    if proposal.draft_probs is not None:
        return proposal.draft_probs
    if proposal.topology.is_chain:
        one_hot = F.one_hot(proposal.token_ids[:, 1:], batch.vocab_size)
        return F.pad(one_hot, (0, 0, 0, 1)).float()
    # Greedy rows accept by the target's argmax, whatever q is.
    assert all(batch.rows[row].request.sampling.is_greedy for row in part.batch_rows), (
        "a tree neither sampled nor greedy"
    )
    return torch.zeros((*proposal.token_ids.shape, batch.vocab_size), device=batch.device)


def _merge_scores(
    batch: Batch, parts: Sequence[PartialProposal], width: int
) -> Float[Tensor, "B N"] | None:
    scores = [part.proposal.scores for part in parts]
    known = [values for values in scores if values is not None]
    if len(known) < len(parts):
        return None
    return _fill(known[0].new_ones((len(batch), width)), parts, known)


def _merge_probes(
    batch: Batch, parts: Sequence[PartialProposal], width: int
) -> Bool[Tensor, "B N"] | None:
    if all(part.proposal.probe is None for part in parts):
        return None
    merged = torch.zeros((len(batch), width), dtype=torch.bool, device=batch.device)
    return _fill(merged, parts, [_probe_of(part.proposal) for part in parts])


def _probe_of(proposal: Proposal) -> Bool[Tensor, "b n"]:
    if proposal.probe is None:
        return torch.zeros_like(proposal.token_ids, dtype=torch.bool)
    return proposal.probe.expand_as(proposal.token_ids)


def _is_with_replacement(proposals: Sequence[Proposal]) -> bool:
    flags = set()
    for proposal in proposals:
        if proposal.draft_probs is not None and not proposal.topology.is_chain:
            flags.add(proposal.with_replacement)
    assert len(flags) <= 1, "trees sampled with and without replacement in one proposal"
    return flags == {True}


def _merge_host_lengths(parts: Sequence[PartialProposal], num_rows: int) -> tuple[int, ...] | None:
    lengths = [1] * num_rows
    for part in parts:
        known = part.proposal.host_lengths
        if known is None:
            return None
        for batch_row, proposal_row in zip(part.batch_rows, part.proposal_rows, strict=True):
            lengths[batch_row] = known[proposal_row]
    return tuple(lengths)


def _merge_topologies(
    parts: Sequence[PartialProposal], num_rows: int, width: int, device: torch.device
) -> Topology:
    topologies = [part.proposal.topology for part in parts]
    if len(topologies) == 1 and len(topologies[0].parents) == 1:
        return topologies[0]
    if all(topology.is_chain for topology in topologies):
        return Topology.chain(width, device)
    empty = upload([[-1, *padding_parents(1, width)]], device).repeat(num_rows, 1)
    padded = []
    max_depth = (width - 1).bit_length()  # of rows that are all padding
    max_children = 2
    for part, topology in zip(parts, topologies, strict=True):
        rows = len(part.proposal.lengths)
        padding = upload([padding_parents(topology.num_nodes, width)], device, torch.long)
        both = (topology.parents.expand(rows, -1), padding.expand(rows, -1))
        padded.append(torch.cat(both, dim=1))
        is_padded = topology.num_nodes < width
        max_depth = max(max_depth, topology.max_depth)
        max_children = max(max_children, topology.max_children + is_padded)
    return Topology(_fill(empty, parts, padded), max_depth=max_depth, max_children=max_children)
