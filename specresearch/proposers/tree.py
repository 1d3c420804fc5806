"""How draft trees grow, whoever drafts: along fixed paths of child ranks, or wherever the drafter is most confident.

Loops run over levels and child ranks, never over nodes, and nothing is brought to the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.batch import Batch
from specresearch.proposal import Proposal, Topology, upload
from specresearch.proposers.static_tree import StaticTree
from specresearch.sampling import DRAFT_STREAM, SamplingBatch, draw, logits_to_probs, penalize

TIE = 1e-9  # less confidence for every level, so that no child stands before its parent


@runtime_checkable
class Drafter(Protocol):
    """What a tree grows from: something that says what follows nodes whose ancestors it has seen.

    The root is never passed: the logits after it are known when growth begins.
    """

    def expand(
        self, topology: Topology, token_ids: Int[Tensor, "B M"], first: int
    ) -> Float[Tensor, "B M V"]:
        """Logits after the nodes from `first` on, M of them; the nodes before were passed by earlier calls."""
        ...


def grow_static(
    drafter: Drafter,
    batch: Batch,
    root_logits: Float[Tensor, "B 1 V"],
    tree: StaticTree,
    budget: Sequence[int],
    *,
    sample: bool = False,
) -> Proposal:
    """Drafts in the shape of `tree`, of which each row keeps the first that its budget and its room allow.

    Levels that no row keeps are not drafted. What a row gets does not depend on the other rows. At least one row must have
    a budget.
    sample: children are drawn from the drafter's distribution without replacement, in the order of their ranks, and the
    proposal says so; otherwise each is the token of its rank, a point mass.
    """
    crop, sampling = tree.crop(budget, batch.room), batch.sampling
    uniforms = None
    if sample:
        uniforms = sampling.uniforms(DRAFT_STREAM, tree.topology.num_nodes)[:, crop.tree.places]
    tree, parents = crop.tree, crop.tree.topology.parents[0]
    tokens, probs, logits = batch.roots, [], root_logits
    scores = torch.ones_like(batch.roots, dtype=root_logits.dtype)
    spent = torch.zeros_like(batch.roots, dtype=torch.bool)
    for depth in range(1, tree.depth + 1):
        above, begin, end = tree.levels[depth - 1 : depth + 2]
        below = parents[begin:end] - above  # [n]
        context = _path_to(tree.topology, tokens, above, logits.shape[1], sampling)
        if uniforms is None:
            logits = penalize(logits, sampling, *context)
            best = logits.topk(tree.widths[depth], dim=-1)
            ranks = tree.ranks[begin:end]
            chosen = best.indices[:, below, ranks]
            own = (best.values[:, below, ranks] - logits.logsumexp(-1)[:, below]).exp()
        else:
            q = logits_to_probs(logits, sampling, *context)
            probs += [q, q.new_zeros((len(batch), begin - above - q.shape[1], q.shape[2]))]
            table = tree.topology.children[0, above : above + q.shape[1]]
            drawn, empty = _draw_children(q, table, uniforms)
            order = (
                (table[below] == torch.arange(begin, end, device=table.device)[:, None])
                .long()
                .argmax(1)
            )
            chosen = drawn[:, below, order]
            own = q[:, below].gather(2, chosen[:, :, None])[:, :, 0]
            spent = torch.cat([spent, empty[:, below, order]], dim=1)
        tokens, scores = (
            torch.cat([tokens, chosen], dim=1),
            torch.cat([scores, own.to(scores.dtype)], dim=1),
        )
        fed = tree.num_fed[depth]
        if fed:
            logits = drafter.expand(tree.tops[depth], chosen[:, :fed], begin)
    if uniforms is not None:
        num_leaves = tree.topology.num_nodes - sum(part.shape[1] for part in probs)
        probs.append(probs[0].new_zeros((len(batch), num_leaves, probs[0].shape[2])))
    return Proposal(
        crop.arrange(tokens),
        crop.topology,
        upload(crop.lengths, batch.device),
        crop.arrange(torch.cat(probs, dim=1)) if probs else None,
        scores=crop.arrange(scores),
        probe=crop.arrange(spent) if probs else None,
        host_lengths=crop.lengths,
    )


def _path_to(
    topology: Topology, tokens: Int[Tensor, "B n"], first: int, num: int, sampling: SamplingBatch
) -> tuple[Int[Tensor, "B n"] | None, Bool[Tensor, "#B M n"] | None]:
    """What penalties must count besides the committed tokens, for the `num` nodes from `first` on: the drafts above them."""
    if not sampling.has_penalty:
        return None, None
    on_path = topology.ancestors[:, first : first + num, : tokens.shape[1]].clone()
    on_path[:, :, 0] = False
    return tokens, on_path


def _draw_children(
    q: Float[Tensor, "B M V"], children: Int[Tensor, "M R"], uniforms: Float[Tensor, "B N"]
) -> tuple[Int[Tensor, "B M R"], Bool[Tensor, "B M R"]]:
    """Children of every parent, drawn from what its earlier children left of q; and where nothing was left to draw from."""
    drawn, empty, left = [], [], q
    for rank in range(children.shape[1]):
        u = uniforms[:, children[:, rank].clamp(min=0)]
        token = draw(left.flatten(0, 1), u.flatten()).view(u.shape).clamp(max=q.shape[2] - 1)
        drawn.append(token)
        empty.append(left.gather(2, token[:, :, None])[:, :, 0] <= 0)
        left = left.scatter(2, token[:, :, None], 0.0)
    return torch.stack(drawn, dim=2), torch.stack(empty, dim=2)


def grow_dynamic(
    drafter: Drafter,
    batch: Batch,
    root_logits: Float[Tensor, "B 1 V"],
    budget: Sequence[int],
    *,
    depth: int,
    top_k: int,
) -> Proposal:
    """EAGLE-2's tree (arXiv 2406.16858): expand the `top_k` most confident nodes of every level, then keep the best of all.

    A node's confidence is the product of the drafter's probabilities along its path. Row b keeps its `budget[b]` most
    confident nodes no deeper than it has room for, which form a tree since confidence only falls. They are point masses at
    every temperature: keeping sampled tokens by their own confidence would bias the output. At least one row must have a
    budget; what none could keep is not drafted.
    """
    rows, device = len(batch), batch.device
    depths = [min(depth, allowed, left) for allowed, left in zip(budget, batch.room, strict=True)]
    depth, k = max(depths), min(top_k, root_logits.shape[2], max(budget))
    own, tokens = _likeliest(root_logits, k)  # [B, 1, k]
    pool = _Pool(tokens[:, 0], own[:, 0], own[:, 0].exp(), torch.zeros_like(tokens[:, 0]))
    frontier = torch.arange(k, device=device).expand(rows, -1)  # places in the pool
    fed = Topology.chain(1, device).with_level(torch.zeros_like(frontier), k)
    for level in range(2, depth + 1):
        first = fed.num_nodes - k
        logits = drafter.expand(fed, pool.tokens.gather(1, frontier), first)
        own, tokens = _likeliest(logits, k)  # [B, k, k]
        values = own + pool.values.gather(1, frontier)[:, :, None] - TIE
        if level > min(depths):
            too_deep = upload([level > deepest for deepest in depths], device)
            values = values.masked_fill(too_deep[:, None, None], float("-inf"))
        begin = pool.tokens.shape[1]
        above = (frontier + 1)[:, :, None].expand(-1, -1, k)
        pool = pool.with_nodes(
            tokens.flatten(1), values.flatten(1), own.exp().flatten(1), above.flatten(1)
        )
        if level < depth:
            best = values.flatten(1).topk(k).indices
            frontier = begin + best
            fed = fed.with_level(first + best // k, k)
    num_within = [k + max(deepest - 1, 0) * k * k for deepest in depths]
    kept = [min(pair) for pair in zip(budget, num_within, strict=True)]
    return _keep_best(pool, batch, kept, depth, k)


def _likeliest(
    logits: Float[Tensor, "B M V"], k: int
) -> tuple[Float[Tensor, "B M k"], Int[Tensor, "B M k"]]:
    """log q of the k likeliest tokens after each node, in double precision, and the tokens."""
    best = logits.topk(k, dim=-1)
    return (best.values - logits.logsumexp(-1, keepdim=True)).double().clamp(max=0.0), best.indices


@dataclass(frozen=True)
class _Pool:
    """Every node considered, level by level. values: log of the confidence. parents: place in the pool plus one; 0, the root."""

    tokens: Int[Tensor, "B P"]
    values: Float[Tensor, "B P"]
    own: Float[Tensor, "B P"]
    parents: Int[Tensor, "B P"]

    def with_nodes(
        self,
        tokens: Int[Tensor, "B Q"],
        values: Float[Tensor, "B Q"],
        own: Float[Tensor, "B Q"],
        parents: Int[Tensor, "B Q"],
    ) -> "_Pool":
        pairs = (
            (self.tokens, tokens),
            (self.values, values),
            (self.own, own),
            (self.parents, parents),
        )
        return _Pool(*(torch.cat(pair, dim=1) for pair in pairs))


def _keep_best(pool: _Pool, batch: Batch, kept: Sequence[int], depth: int, top_k: int) -> Proposal:
    """The `kept[b]` most confident nodes of the pool as a tree; what fills a row up comes last, as a chain nobody reads."""
    num_pooled, num = pool.tokens.shape[1], max(kept)
    num_kept = upload(kept, batch.device)
    best = pool.values.sort(dim=1, descending=True, stable=True).indices[:, :num]
    index = torch.arange(num, device=batch.device)
    within = index < num_kept[:, None]
    chosen = best.gather(
        1, torch.where(within, best, num_pooled + index).argsort(dim=1)
    )  # parents before children
    place = torch.zeros((len(batch), num_pooled + 1), dtype=torch.long, device=batch.device)
    place.scatter_(1, chosen + 1, index.expand_as(chosen) + 1)
    parents = torch.where(within, place.gather(1, pool.parents.gather(1, chosen)), index)
    parents = torch.where(parents <= index, parents, 0)  # only where confidences are all zero
    root = torch.full_like(batch.roots, -1)
    ones = torch.ones_like(batch.roots, dtype=pool.own.dtype)
    return Proposal(
        torch.cat([batch.roots, pool.tokens.gather(1, chosen)], dim=1),
        Topology(torch.cat([root, parents], dim=1), max_depth=depth, max_children=top_k),
        num_kept + 1,
        scores=torch.cat([ones, pool.own.gather(1, chosen)], dim=1),
        host_lengths=tuple(num + 1 for num in kept),
    )
