"""How draft trees grow: along fixed paths of child ranks, or where the drafter is most confident.

Loops run over levels and child ranks, never over nodes, and nothing is brought to the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.drawing import draw
from specresearch.models.draft_vocabulary import DraftVocabulary
from specresearch.models.graphs import GraphInput, Tensors
from specresearch.proposal import Proposal, Topology, upload
from specresearch.proposers.candidates import Candidates, FedTree
from specresearch.proposers.growth_graph import GrowthGraph, TreeDrafter
from specresearch.proposers.static_tree import StaticTree
from specresearch.sampling import DRAFT_STREAM, SamplingBatch, logits_to_probs, penalize, topk

TIE = 1e-9  # confidence lost at every level, at least


def grow_static(
    drafter: TreeDrafter,
    batch: Batch,
    root_logits: Float[Tensor, "B 1 D"],
    tree: StaticTree,
    budget: Sequence[int],
    *,
    sample: bool = False,
    vocabulary: DraftVocabulary | None = None,
    graph: GrowthGraph | None = None,
) -> Proposal:
    """Draft in the shape of `tree`; each row keeps the first nodes that its budget and room allow.

    Levels that no row keeps are not drafted. The drafts of a row do not depend on the other rows.
    At least one row must have a budget.

    Args:
        sample: Draw children from the drafter's distribution without replacement, in the order of
            their ranks, and report it. Otherwise each is the token of its rank, a point mass.
        vocabulary: What the logits are of; None: the target's tokens.
        graph: Grows as one graph where it can.
    """
    crop, sampling = tree.crop(budget, batch.room), batch.sampling
    vocabulary = vocabulary or DraftVocabulary(root_logits.shape[2])
    uniforms = None
    if sample:
        # Numbered by the nodes of the whole tree: cropping must not change the draws.
        uniforms = sampling.uniforms(DRAFT_STREAM, tree.topology.num_nodes)
        uniforms = uniforms[:, crop.tree.original_nodes]
    tree = crop.tree

    def grow(drafter: TreeDrafter, roots: Tensor, logits: Tensor, *given: Tensor) -> Tensors:
        if not given:
            return _grow_levels(drafter, sampling, vocabulary, roots, logits, tree, None)
        drawn = sampling.given(*given)
        return _grow_levels(drafter, drawn, vocabulary, roots, logits, tree, given[1])

    def inputs(num_rows: int) -> list[GraphInput]:
        parts = [GraphInput.padded(part, (num_rows,)) for part in (batch.roots, root_logits)]
        if uniforms is not None:
            columns = sampling.columns
            parts.append(GraphInput.padded(columns, (len(columns), num_rows), fill=1))
            parts.append(GraphInput.padded(uniforms, (num_rows,)))
        return parts

    grown = None
    if graph is not None and not sampling.has_penalty:
        kind = ("static", tree.paths, sampling.kind if sample else None, root_logits.shape[2])
        grown = graph.run(kind, grow, inputs)
    if grown is None:
        grown = _grow_levels(
            drafter, sampling, vocabulary, batch.roots, root_logits, tree, uniforms
        )
    tokens, scores, exhausted, *draft_probs = grown
    return Proposal(
        token_ids=crop.arrange(tokens),
        topology=crop.topology,
        lengths=upload(crop.lengths, batch.device),
        draft_probs=crop.arrange(draft_probs[0]) if draft_probs else None,
        scores=crop.arrange(scores),
        probe=crop.arrange(exhausted) if sample else None,
        host_lengths=crop.lengths,
    )


def _grow_levels(
    drafter: TreeDrafter,
    sampling: SamplingBatch,
    vocabulary: DraftVocabulary,
    roots: Int[Tensor, "B 1"],
    logits: Float[Tensor, "B 1 D"],
    tree: StaticTree,
    uniforms: Float[Tensor, "B N"] | None,
) -> Tensors:
    """Return tokens, scores and which tokens are arbitrary; and q of every node, if sampled."""
    tokens = roots
    scores = torch.ones_like(roots, dtype=logits.dtype)
    exhausted = torch.zeros_like(roots, dtype=torch.bool)
    draft_probs: list[Tensor] = []
    # Penalties count the target's tokens, and q is reported in them.
    is_whole = uniforms is not None or sampling.has_penalty
    for depth in range(1, tree.depth + 1):
        if is_whole:
            logits = vocabulary.whole(logits)
        first_parent, first = tree.levels[depth - 1 : depth + 1]
        end_parent = first_parent + logits.shape[1]
        context = _drafts_above(tree.topology, tokens, first_parent, end_parent, sampling)
        if uniforms is None:
            level = _likeliest_children(penalize(logits, sampling, *context), tree, depth)
        else:
            q = logits_to_probs(logits, sampling, *context)
            level = _sampled_children(q, tree, depth, uniforms)
            if not draft_probs:
                draft_probs.append(_new_draft_probs(q, tree))
            draft_probs[0][:, first_parent:end_parent] = q
        drafted = level.tokens if is_whole else vocabulary.named(level.tokens)
        tokens = torch.cat([tokens, drafted], dim=1)
        scores = torch.cat([scores, level.scores.to(scores.dtype)], dim=1)
        exhausted = torch.cat([exhausted, level.exhausted], dim=1)
        num_fed = tree.num_fed[depth]
        if num_fed:
            logits = drafter.expand(tree.fed_trees[depth], drafted[:, :num_fed], first)
    return tokens, scores, exhausted, *draft_probs


def _new_draft_probs(q: Float[Tensor, "B M V"], tree: StaticTree) -> Float[Tensor, "B N V"]:
    """Return room for q after every node: 0 after those that get no children, not yet set else."""
    probs = q.new_empty((len(q), tree.topology.num_nodes, q.shape[2]))
    for begin, num_fed, end in zip(tree.levels, tree.num_fed, tree.levels[1:], strict=False):
        probs[:, begin + num_fed : end] = 0.0
    return probs


def _drafts_above(
    topology: Topology, tokens: Int[Tensor, "B n"], first: int, end: int, sampling: SamplingBatch
) -> tuple[Int[Tensor, "B n"] | None, Bool[Tensor, "#B M n"] | None]:
    """Return the drafts that penalties must count for the nodes from `first` to `end`."""
    if not sampling.has_penalty:
        return None, None
    on_path = topology.ancestors[:, first:end, : tokens.shape[1]].clone()
    on_path[:, :, 0] = False
    return tokens, on_path


@dataclass(frozen=True)
class _Level:
    """The nodes of one depth.

    Attributes:
        exhausted: The siblings before used up all of q, so the token is arbitrary.
    """

    tokens: Int[Tensor, "B n"]
    scores: Float[Tensor, "B n"]
    exhausted: Bool[Tensor, "B n"]


def _likeliest_children(logits: Float[Tensor, "B M _"], tree: StaticTree, depth: int) -> _Level:
    first_parent, first, end = tree.levels[depth - 1 : depth + 2]
    parent = tree.topology.parents[0, first:end] - first_parent
    best = topk(logits, tree.widths[depth])
    rank = tree.ranks[first:end]
    tokens = best.indices[:, parent, rank]
    scores = (best.values[:, parent, rank] - logits.logsumexp(-1)[:, parent]).exp()
    return _Level(tokens, scores, torch.zeros_like(tokens, dtype=torch.bool))


def _sampled_children(
    q: Float[Tensor, "B M V"], tree: StaticTree, depth: int, uniforms: Float[Tensor, "B N"]
) -> _Level:
    first_parent, first, end = tree.levels[depth - 1 : depth + 2]
    parent = tree.topology.parents[0, first:end] - first_parent
    children = tree.topology.children[0, first_parent : first_parent + q.shape[1]]
    drawn, exhausted = _draw_children(q, children, uniforms)
    node = torch.arange(first, end, device=children.device)[:, None]
    order = (children[parent] == node).long().argmax(1)  # among the siblings
    tokens = drawn[:, parent, order]
    row = torch.arange(len(q), device=q.device)[:, None]
    scores = q[row, parent, tokens]
    return _Level(tokens, scores, exhausted[:, parent, order])


def _draw_children(
    q: Float[Tensor, "B M V"], children: Int[Tensor, "M R"], uniforms: Float[Tensor, "B N"]
) -> tuple[Int[Tensor, "B M R"], Bool[Tensor, "B M R"]]:
    """Draw the children of every parent, each from what its earlier siblings left of q.

    Returns:
        The tokens, and where nothing was left to draw from.
    """
    drawn, exhausted = [], []
    left = q
    for rank in range(children.shape[1]):
        u = uniforms[:, children[:, rank].clamp(min=0)]
        token = draw(left.flatten(0, 1), u.flatten()).view(u.shape).clamp(max=q.shape[2] - 1)
        drawn.append(token)
        exhausted.append(left.gather(2, token[:, :, None])[:, :, 0] <= 0)
        if rank + 1 < children.shape[1]:
            left = left.scatter(2, token[:, :, None], 0.0)
    return torch.stack(drawn, dim=2), torch.stack(exhausted, dim=2)


def grow_dynamic(
    drafter: TreeDrafter,
    batch: Batch,
    root_logits: Float[Tensor, "B 1 D"],
    budget: Sequence[int],
    *,
    depth: int,
    top_k: int,
    vocabulary: DraftVocabulary | None = None,
    graph: GrowthGraph | None = None,
) -> Proposal:
    """Grow EAGLE-2's tree (arXiv 2406.16858).

    Expand the `top_k` most confident nodes of every level, or `batch.max_width` if that is less,
    then keep the best of all. A node's confidence is the product of the drafter's probabilities
    along its path. Row b keeps its `budget[b]` most confident nodes no deeper than it has room for;
    they form a tree, since confidence only falls. They are point masses at every temperature:
    keeping sampled tokens by their own confidence would bias the output. At least one row must have
    a budget; what none could keep is not drafted.

    Args:
        vocabulary: What the logits are of; None: the target's tokens.
        graph: Grows as one graph where it can.
    """
    vocabulary = vocabulary or DraftVocabulary(root_logits.shape[2])
    depths = [min(depth, allowed, left) for allowed, left in zip(budget, batch.room, strict=True)]
    depth = max(depths)
    k = min(top_k, root_logits.shape[2], max(budget), batch.max_width or top_k)
    num_kept = []
    for allowed, deepest in zip(budget, depths, strict=True):
        num_within = k + max(deepest - 1, 0) * k * k
        num_kept.append(min(allowed, num_within))
    num_nodes, is_uniform = max(num_kept), min(depths) == depth
    limits = upload(list(zip(num_kept, depths, strict=True)), batch.device)

    def grow(drafter: TreeDrafter, roots: Tensor, logits: Tensor, limits: Tensor) -> Tensors:
        num_kept, depths = limits.unbind(1)
        most = None if is_uniform else depths
        candidates = _candidates(drafter, vocabulary, logits, depth, k, most)
        return candidates.best(roots, num_kept, num_nodes)

    grown = None
    if graph is not None:
        kind = ("dynamic", depth, k, num_nodes, is_uniform, root_logits.shape[2])
        values = (batch.roots, root_logits, limits)
        grown = graph.run(
            kind, grow, lambda num_rows: [GraphInput.padded(part, (num_rows,)) for part in values]
        )
    if grown is None:
        grown = grow(drafter, batch.roots, root_logits, limits)
    token_ids, parents, scores = grown
    return Proposal(
        token_ids=token_ids,
        topology=Topology(parents, max_depth=depth, max_children=k),
        lengths=limits[:, 0] + 1,
        scores=scores,
        host_lengths=tuple([num + 1 for num in num_kept]),
    )


def _candidates(
    drafter: TreeDrafter,
    vocabulary: DraftVocabulary,
    root_logits: Float[Tensor, "B 1 D"],
    depth: int,
    k: int,
    depths: Int[Tensor, " B"] | None,
) -> Candidates:
    """Expand level after level.

    Args:
        depths: The levels that each row has room for; None: all of them.
    """
    rows, device = len(root_logits), root_logits.device
    log_q, tokens = _likeliest(root_logits, k)  # [B, 1, k]
    log_q, tokens = log_q[:, 0], vocabulary.named(tokens[:, 0])
    candidates = Candidates([tokens], [log_q], [log_q], [])
    frontier = torch.arange(k, device=device).expand(rows, -1)  # candidates to expand
    confidence, fed = log_q, FedTree(rows, depth, k, device)
    topology = fed.with_level(torch.zeros_like(frontier))
    for level in range(2, depth + 1):
        logits = drafter.expand(topology, tokens, topology.num_nodes - k)
        log_q, tokens = _likeliest(logits, k)  # [B, k, k]
        confidence = log_q + confidence[:, :, None]
        if depths is not None:
            confidence = confidence.masked_fill((depths < level)[:, None, None], float("-inf"))
        tokens, confidence = vocabulary.named(tokens).flatten(1), confidence.flatten(1)
        num_before = candidates.extend(tokens, confidence, log_q.flatten(1), frontier)
        if level < depth:
            best = confidence.topk(k)
            confidence, tokens = best.values, tokens.gather(1, best.indices)
            frontier = best.indices + num_before
            topology = fed.with_level(best.indices // k)
    return candidates


def _likeliest(
    logits: Float[Tensor, "B M D"], k: int
) -> tuple[Float[Tensor, "B M k"], Int[Tensor, "B M k"]]:
    """Return log q of the k likeliest tokens after each node in float64, and the tokens.

    It is never quite 0, so that a child never sorts before its parent.
    """
    best = topk(logits.log_softmax(-1), k)
    return best.values.double().clamp(max=-TIE), best.indices
