"""The rules of a valid `Proposal`, each with the message that names its violation."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from specresearch.proposal import DraftKind, Proposal
from specresearch.topology import Topology

Condition = tuple[Tensor | bool, str]
SUM_TOLERANCE = 1e-2  # of probabilities, in any dtype


def violation(
    proposal: Proposal,
    roots: Int[Tensor, "B 1"],
    budget: Sequence[int],
    kind: DraftKind,
    vocab_size: int,
    max_depth: int | None = None,
) -> str | None:
    """Return the first rule that the proposal breaks, or None if it is valid. Syncs often."""
    for holds, reason in _conditions(proposal, roots, budget, kind, vocab_size, max_depth):
        is_met = holds if isinstance(holds, bool) else bool(holds.all())
        if not is_met:
            return reason
    return None


def _conditions(
    proposal: Proposal,
    roots: Int[Tensor, "B 1"],
    budget: Sequence[int],
    kind: DraftKind,
    vocab_size: int,
    max_depth: int | None,
) -> Iterator[Condition]:
    """Yield every rule and what to say if it is broken; later rules rely on earlier ones."""
    yield from _shape_conditions(proposal, len(roots))
    tokens = proposal.token_ids
    yield tokens[:, :1] == roots, "token_ids[:, 0] is not each row's last committed token"
    in_vocabulary = (tokens >= 0) & (tokens < vocab_size)
    yield in_vocabulary, f"a token id lies outside the vocabulary of {vocab_size}"
    yield from _length_conditions(proposal, budget)
    yield from _tree_conditions(proposal.topology, proposal.acceptable, kind, max_depth)
    yield from _probability_conditions(proposal)


def _shape_conditions(proposal: Proposal, rows: int) -> Iterator[Condition]:
    num_nodes = proposal.topology.num_nodes
    expected = f"for {rows} rows and a tree of {num_nodes} nodes"
    shape = tuple(proposal.token_ids.shape)
    yield shape == (rows, num_nodes), f"token_ids has shape {list(shape)} {expected}"
    for name in ("draft_probs", "scores", "probe"):
        values = getattr(proposal, name)
        if values is None:
            continue
        shape = tuple(values.shape[:2])
        is_broadcast_probe = name == "probe" and shape == (1, num_nodes)
        fits = is_broadcast_probe or shape == (rows, num_nodes)
        yield fits, f"{name} has shape {list(shape)} {expected}"


def _length_conditions(proposal: Proposal, budget: Sequence[int]) -> Iterator[Condition]:
    num_nodes = proposal.token_ids.shape[1]
    yield (
        (proposal.lengths >= 1) & (proposal.lengths <= num_nodes),
        f"lengths do not lie in 1 to {num_nodes}, the root included",
    )
    lengths = proposal.lengths.tolist()
    claims = lengths if proposal.host_lengths is None else proposal.host_lengths
    num_claims = len(claims)
    yield (
        num_claims == len(lengths),
        f"host_lengths has {num_claims} entries for {len(lengths)} rows",
    )
    for row, (length, claimed, allowed) in enumerate(zip(lengths, claims, budget, strict=True)):
        yield (
            claimed == length,
            f"row {row}: host_lengths says {claimed} nodes, and lengths {length}",
        )
        yield length - 1 <= allowed, f"row {row}: {length - 1} drafts where {allowed} are allowed"


def _tree_conditions(
    topology: Topology,
    acceptable: Bool[Tensor, "B N"],
    kind: DraftKind,
    max_depth: int | None,
) -> Iterator[Condition]:
    parents = topology.parents
    index = torch.arange(topology.num_nodes, device=parents.device)
    yield parents[:, 0] == -1, "the root's parent is not -1"
    yield (parents[:, 1:] >= 0) & (parents[:, 1:] < index[1:]), "a node comes before its parent"
    is_chain = bool((parents == index - 1).all())
    yield is_chain or not topology.is_chain, "is_chain=True for a tree that branches"
    yield is_chain or kind.trees, "it branches, but the proposer's kind says trees=False"
    # Derived from the parents alone: the bounds and caches of `topology` are under test.
    derived = Topology(parents)
    depth = int(derived.depth.expand(acceptable.shape).masked_fill(~acceptable, 0).max())
    yield depth <= topology.max_depth, f"max_depth={topology.max_depth}, but it is {depth} deep"
    if max_depth is not None:
        yield (
            depth <= max_depth,
            f"a path of {depth} drafts where batch.room allows {max_depth} at most",
        )
    yield (
        derived.max_children <= topology.max_children,
        f"max_children={topology.max_children}, but a node has {derived.max_children}",
    )
    is_same = (topology.ancestors == derived.ancestors).all(-1).expand(acceptable.shape)
    yield is_same | ~acceptable, "ancestors do not follow from parents"


def _probability_conditions(proposal: Proposal) -> Iterator[Condition]:
    drafted = proposal.acceptable.clone()
    drafted[:, 0] = False
    if proposal.scores is not None:
        scores = proposal.scores[drafted]
        yield (scores >= 0) & (scores <= 1 + SUM_TOLERANCE), "a score is not a probability"
    if proposal.draft_probs is None:
        return
    tokens = proposal.token_ids
    parents = proposal.topology.parents.clamp(min=0).expand(len(drafted), -1)
    row = torch.arange(len(drafted), device=parents.device)[:, None].expand_as(parents)
    q = proposal.draft_probs[row[drafted], parents[drafted]]  # [drafts, V]
    yield (q >= 0) & q.isfinite(), "draft_probs holds NaN, infinity or a negative number"
    yield (
        (q.sum(-1) - 1).abs() <= SUM_TOLERANCE,
        "draft_probs of a node with children does not sum to 1",
    )
    q_token = q.gather(1, tokens[drafted][:, None])
    yield q_token > 0, "a draft has probability 0 in the distribution it was drawn from"
    if not proposal.with_replacement:
        same_parent = parents[:, :, None] == parents[:, None]
        same_token = tokens[:, :, None] == tokens[:, None]
        both_drafted = drafted[:, :, None] & drafted[:, None]
        twins = same_parent & same_token & both_drafted
        yield ~twins.tril(-1), "siblings drawn without replacement hold the same token"
