"""Several proposers in turn: each row takes its drafts from the first one that has any for it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from specresearch.batch import Batch, RequestState
from specresearch.models.causal_lm import CausalLM, ModelOutput
from specresearch.proposal import DraftKind, Proposal, Topology, Verdict, upload
from specresearch.proposers.base import Proposer
from specresearch.proposers.host_tree import padding_parents


class Cascade(Proposer):
    """Asks `proposers` in order, each for the rows that those before it had nothing to say about; all of them learn.

    A proposer sees only the rows it drafts for, so that what it keeps for the others stays that of committed tokens.
    Raises ValueError for a deterministic tree beside sampled drafts: one proposal has draft probabilities for all rows or
    for none, and they cannot express siblings that were not drawn; and for a proposer with probe nodes of its own.
    """

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        if len(proposers) < 2:
            raise ValueError(f"a cascade of {len(proposers)} proposers has no order; name at least two")
        self.proposers = tuple(proposers)
        names = [type(part).__name__ for part in proposers]
        for part, name in zip(proposers, names, strict=True):
            if part.max_nodes > part.num_draft_tokens + 1:
                raise ValueError(
                    f"{name} verifies nodes of its own beside its drafts, which a cascade has no place for; use it alone"
                )
        kinds = [part.kind for part in proposers]
        sampled = [name for name, kind in zip(names, kinds, strict=True) if kind.sampled]
        fixed = [name for name, kind in zip(names, kinds, strict=True) if kind.trees and not kind.sampled]
        if sampled and fixed:
            raise ValueError(
                f"{fixed[0]} drafts trees that are not sampled, {sampled[0]} samples: no draft probabilities fit both; "
                f"let {fixed[0]} draft chains, or {sampled[0]} its likeliest tokens (sample=false)"
            )
        self.kind = DraftKind(
            trees=any(kind.trees for kind in kinds),
            sampled=len(sampled) == len(kinds),
            scored=all(kind.scored for kind in kinds),
        )
        self.num_draft_tokens = max(part.num_draft_tokens for part in proposers)
        self._join_layers()

    def _join_layers(self) -> None:
        self.hidden_layers = tuple(dict.fromkeys(layer for part in self.proposers for layer in part.hidden_layers))

    def bind(self, target: CausalLM, num_slots: int) -> None:
        for part in self.proposers:
            part.bind(target, num_slots)
        self._join_layers()

    def start(self, rows: Sequence[RequestState], output: ModelOutput | None) -> None:
        for part in self.proposers:
            part.start(rows, None if output is None else self._output_for(part, output))

    def _output_for(self, part: Proposer, output: ModelOutput) -> ModelOutput:
        """With the hidden states that this proposer asked for."""
        return ModelOutput(
            output.logits, tuple(output.hidden[self.hidden_layers.index(layer)] for layer in part.hidden_layers)
        )

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        if not any(budget):
            return Proposal.empty(batch.roots)
        shares: list[_Share] = []
        waiting = [row for row, allowed in enumerate(budget) if allowed > 0]
        for part in self.proposers:
            if not waiting:
                break
            asked = _some(batch, waiting)
            room = [part.num_draft_tokens if part.kind.trees else most for most in asked.room]
            limits = [min(budget[row], part.num_draft_tokens, most) for row, most in zip(waiting, room, strict=True)]
            proposal = part.propose(asked, limits)
            is_last = part is self.proposers[-1]
            spoke = [True] * len(waiting) if is_last else [length > 1 for length in _lengths(proposal)]
            share = _Share(proposal, waiting, spoke)
            if len(share.rows) == len(batch):
                return proposal
            shares.append(share)
            waiting = [row for row, has_drafts in zip(waiting, spoke, strict=True) if not has_drafts]
        return _merge(batch, [share for share in shares if share.rows])

    def observe(self, batch: Batch, proposal: Proposal, output: ModelOutput, verdict: Verdict) -> None:
        for part in self.proposers:
            part.observe(batch, proposal, self._output_for(part, output), verdict)

    def finish(self, slots: Sequence[int]) -> None:
        for part in self.proposers:
            part.finish(slots)

    def reset(self) -> None:
        for part in self.proposers:
            part.reset()


class _Share:
    """A proposal, the rows of it that count (`own`), and which rows of the batch they are (`rows`)."""

    def __init__(self, proposal: Proposal, asked: Sequence[int], spoke: Sequence[bool]) -> None:
        self.proposal = proposal
        self.own = [i for i, has_drafts in enumerate(spoke) if has_drafts]
        self.rows = [asked[i] for i in self.own]


def _lengths(proposal: Proposal) -> Sequence[int]:
    return proposal.lengths.tolist() if proposal.host_lengths is None else proposal.host_lengths  # sync


def _some(batch: Batch, rows: Sequence[int]) -> Batch:
    if len(rows) == len(batch):
        return batch
    return Batch([batch.rows[row] for row in rows], batch.device, batch.vocab_size, batch.decode)


def _merge(batch: Batch, shares: Sequence[_Share]) -> Proposal:
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
        _fill(torch.ones_like(batch.roots), shares, [proposal.lengths[:, None] for proposal in proposals])[:, 0],
        draft_probs,
        _is_with_replacement(proposals),
        scores,
        probe,
        _merge_host_lengths(shares, len(batch)),
    )


def _fill(merged: Tensor, shares: Sequence[_Share], parts: Sequence[Tensor]) -> Tensor:
    """Write the rows that count of every part, [b, n, ...], into [B, N, ...]."""
    for share, part in zip(shares, parts, strict=True):
        rows, own = upload(share.rows, merged.device), upload(share.own, merged.device)
        merged[rows, : part.shape[1]] = part[own].to(merged.dtype)
    return merged


def _probs_of(share: _Share, batch: Batch) -> Float[Tensor, "b n V"]:
    """A chain of point masses is sampled from one-hot rows. Greedy rows accept by the target's argmax whatever q is."""
    part = share.proposal
    if part.draft_probs is not None:
        return part.draft_probs
    if part.topology.is_chain:
        return F.pad(F.one_hot(part.token_ids[:, 1:], batch.vocab_size), (0, 0, 0, 1)).float()
    assert all(batch.rows[row].request.sampling.is_greedy for row in share.rows), "a tree neither sampled nor greedy"
    return torch.zeros((*part.token_ids.shape, batch.vocab_size), device=batch.device)


def _probe_of(proposal: Proposal) -> Bool[Tensor, "b n"]:
    nothing = torch.zeros_like(proposal.token_ids, dtype=torch.bool)
    return nothing if proposal.probe is None else proposal.probe.expand_as(nothing)


def _is_with_replacement(proposals: Sequence[Proposal]) -> bool:
    ways = {p.with_replacement for p in proposals if p.draft_probs is not None and not p.topology.is_chain}
    assert len(ways) <= 1, "trees sampled with and without replacement in one proposal"
    return ways == {True}


def _merge_host_lengths(shares: Sequence[_Share], num_rows: int) -> tuple[int, ...] | None:
    lengths = [1] * num_rows
    for share in shares:
        known = share.proposal.host_lengths
        if known is None:
            return None
        for row, i in zip(share.rows, share.own, strict=True):
            lengths[row] = known[i]
    return tuple(lengths)


def _merge_topologies(shares: Sequence[_Share], num_rows: int, width: int, device: torch.device) -> Topology:
    topologies = [share.proposal.topology for share in shares]
    if all(topology.is_chain for topology in topologies):
        return Topology.chain(width, device)
    parents = upload([[-1, *padding_parents(1, width)]], device).repeat(num_rows, 1)
    padded = []
    for share, topology in zip(shares, topologies, strict=True):
        padding = upload([padding_parents(topology.num_nodes, width)], device, torch.long)
        rows = len(share.proposal.lengths)
        padded.append(torch.cat([topology.parents.expand(rows, -1), padding.expand(rows, -1)], dim=1))
    return Topology(
        _fill(parents, shares, padded),
        max_depth=max((width - 1).bit_length(), *(topology.max_depth for topology in topologies)),
        max_children=max(2, *(t.max_children + (t.num_nodes < width) for t in topologies)),
    )
