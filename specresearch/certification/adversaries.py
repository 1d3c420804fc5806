"""Drafts made to bring out what is wrong with a rule. Each is honest: it says truly how its drafts were drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.batch import Batch
from specresearch.certification.enumeration import Toy
from specresearch.proposal import DraftKind, Proposal, Topology, upload
from specresearch.proposers import Proposer
from specresearch.sampling import DRAFT_STREAM, draw

CHAIN_LENGTH = 5
BRANCHING = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0))
CUT_SHARE = 0.3
Rows: TypeAlias = Float[Tensor, "C V"]


@dataclass(frozen=True)
class Attack:
    """How drafts are drawn.

    twist: what the target would say next, to what drafts are drawn from. labelled: the drafts come with that distribution;
    otherwise they pass for point masses. trees: they branch, the same at every step. with_replacement: how siblings are drawn.
    """

    twist: Callable[[Rows], Rows]
    labelled: bool = True
    trees: bool = False
    with_replacement: bool = True


def worst_token(p: Rows) -> Rows:
    return torch.zeros_like(p).scatter(1, p.argmin(1, keepdim=True), 1.0)


def anything(p: Rows) -> Rows:
    return torch.full_like(p, 1 / p.shape[1])


def sure_of_the_worst(p: Rows) -> Rows:
    return 0.97 * worst_token(p) + 0.03 * anything(p)


def blind_to_the_best(p: Rows) -> Rows:
    left = p.scatter(1, p.argmax(1, keepdim=True), 0.0)
    return left / left.sum(1, keepdim=True)


def for_other_tokens(p: Rows) -> Rows:
    """Each token's probability given to its neighbour."""
    return p.roll(1, dims=1)


ATTACKS = {
    "worst": Attack(worst_token, labelled=False),
    "garbage": Attack(anything, labelled=False),
    "peaked": Attack(sure_of_the_worst),
    "flat": Attack(anything),
    "holes": Attack(blind_to_the_best),
    "tree_garbage": Attack(anything, labelled=False, trees=True),
    "tree_iid": Attack(for_other_tokens, trees=True),
    "tree_distinct": Attack(for_other_tokens, trees=True, with_replacement=False),
}


class Adversary(Proposer):
    """Drafts by an `Attack` on a toy target; a third of the rows stop at some earlier length, whatever the tokens are."""

    def __init__(self, toy: Toy, attack: Attack) -> None:
        self.toy, self.attack = toy, attack
        self.kind = DraftKind(attack.trees, attack.labelled, scored=True)
        self.tree = Topology.from_paths(BRANCHING)
        self.num_draft_tokens = len(BRANCHING) if attack.trees else CHAIN_LENGTH

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        longest = max(budget)
        topology = self.tree if self.attack.trees and longest else Topology.chain(longest + 1)
        parents = topology.parents[0].tolist()
        uniforms = batch.sampling.uniforms(DRAFT_STREAM, len(parents))
        contexts = [[tuple(row.tokens) for row in batch.rows]]
        tokens, scores = [batch.roots], [torch.ones(len(batch), dtype=torch.float64)]
        shape = (len(batch), len(parents), self.toy.vocab_size)
        drawn_from, left = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        for node, parent in enumerate(parents[1:], start=1):
            if parent not in parents[:node]:
                drawn_from[:, parent] = left[:, parent] = self.attack.twist(
                    self.toy.logits(contexts[parent]).softmax(1)
                )
            token = draw(left[:, parent], uniforms[:, node])[:, None]
            if not self.attack.with_replacement:
                left[:, parent] = left[:, parent].scatter(1, token, 0.0)
            tokens.append(token)
            scores.append(drawn_from[:, parent].gather(1, token)[:, 0])
            above = zip(contexts[parent], token[:, 0].tolist(), strict=True)
            contexts.append([(*context, next_token) for context, next_token in above])
        return Proposal(
            torch.cat(tokens, dim=1),
            topology,
            _lengths(uniforms[:, 0], upload(budget, batch.device)),
            drawn_from if self.attack.labelled else None,
            self.attack.with_replacement,
            torch.stack(scores, dim=1),
        )


def _lengths(uniforms: Float[Tensor, " B"], budget: Tensor) -> Tensor:
    """Root and drafts: as many as the budget allows, or, in `CUT_SHARE` of the rows, any number up to that."""
    cut = (uniforms / CUT_SHARE * (budget + 1)).long()
    return 1 + torch.minimum(cut, budget)
