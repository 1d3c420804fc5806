"""Adversaries: proposers whose drafts expose errors of an acceptance rule.

They are honest: they declare correctly how their drafts were drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.batch import Batch
from specresearch.certification.targets import Toy
from specresearch.drawing import draw
from specresearch.proposal import DraftKind, Proposal, Topology, upload
from specresearch.proposers import Proposer
from specresearch.sampling import DRAFT_STREAM

CHAIN_LENGTH = 5
TREE_PATHS = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0))
CUT_SHARE = 0.3
Rows: TypeAlias = Float[Tensor, "C V"]


@dataclass(frozen=True)
class Attack:
    """How an adversary drafts.

    Attributes:
        twist: turns the target's next-token probabilities into those drafted from.
        labelled: declare that distribution; otherwise the drafts pass for point masses.
        trees: draft a tree of fixed shape instead of a chain.
        with_replacement: how siblings are drawn.
    """

    twist: Callable[[Rows], Rows]
    labelled: bool = True
    trees: bool = False
    with_replacement: bool = True


def least_likely(p: Rows) -> Rows:
    """Return point masses on the target's least likely token."""
    return torch.zeros_like(p).scatter(1, p.argmin(1, keepdim=True), 1.0)


def uniform(p: Rows) -> Rows:
    return torch.full_like(p, 1 / p.shape[1])


def mostly_least_likely(p: Rows) -> Rows:
    return 0.97 * least_likely(p) + 0.03 * uniform(p)


def without_likeliest(p: Rows) -> Rows:
    remaining = p.scatter(1, p.argmax(1, keepdim=True), 0.0)
    return remaining / remaining.sum(1, keepdim=True)


def shifted(p: Rows) -> Rows:
    """Give each token's probability to its neighbour."""
    return p.roll(1, dims=1)


ATTACKS = {
    "worst": Attack(least_likely, labelled=False),
    "garbage": Attack(uniform, labelled=False),
    "peaked": Attack(mostly_least_likely),
    "flat": Attack(uniform),
    "holes": Attack(without_likeliest),
    "tree_garbage": Attack(uniform, labelled=False, trees=True),
    "tree_iid": Attack(shifted, trees=True),
    "tree_distinct": Attack(shifted, trees=True, with_replacement=False),
}


class Adversary(Proposer):
    """Drafts by an `Attack` on a toy target.

    In `CUT_SHARE` of the rows the drafts end early, at a length that depends on no token.
    """

    def __init__(self, toy: Toy, attack: Attack) -> None:
        self.toy, self.attack = toy, attack
        self.kind = DraftKind(attack.trees, attack.labelled, scored=True)
        self.tree = Topology.from_paths(TREE_PATHS)
        self.num_draft_tokens = len(TREE_PATHS) if attack.trees else CHAIN_LENGTH

    def propose(self, batch: Batch, budget: Sequence[int]) -> Proposal:
        longest = max(budget)
        topology = self.tree if self.attack.trees and longest else Topology.chain(longest + 1)
        parents = topology.parents[0].tolist()
        uniforms = batch.sampling.uniforms(DRAFT_STREAM, len(parents))
        contexts = [[tuple(row.tokens) for row in batch.rows]]  # of each node, for every row
        tokens = [batch.roots]
        scores = [torch.ones(len(batch), dtype=torch.float64)]
        shape = (len(batch), len(parents), self.toy.vocab_size)
        draft_probs = torch.zeros(shape, dtype=torch.float64)
        weights = torch.zeros(shape, dtype=torch.float64)  # without siblings drawn before
        for node, parent in enumerate(parents[1:], start=1):
            if parent not in parents[:node]:
                target_probs = self.toy.logits(contexts[parent]).softmax(1)
                draft_probs[:, parent] = self.attack.twist(target_probs)
                weights[:, parent] = draft_probs[:, parent]
            token = draw(weights[:, parent], uniforms[:, node])[:, None]  # [B, 1]
            if not self.attack.with_replacement:
                weights[:, parent] = weights[:, parent].scatter(1, token, 0.0)
            tokens.append(token)
            scores.append(draft_probs[:, parent].gather(1, token)[:, 0])
            pairs = zip(contexts[parent], token[:, 0].tolist(), strict=True)
            contexts.append([(*context, next_token) for context, next_token in pairs])
        return Proposal(
            torch.cat(tokens, dim=1),
            topology,
            _lengths(uniforms[:, 0], upload(budget, batch.device)),
            draft_probs=draft_probs if self.attack.labelled else None,
            with_replacement=self.attack.with_replacement,
            scores=torch.stack(scores, dim=1),
        )


def _lengths(uniforms: Float[Tensor, " B"], budget: Tensor) -> Tensor:
    """Return the number of nodes per row, root included: all that the budget allows, or fewer."""
    cut = (uniforms / CUT_SHARE * (budget + 1)).long()
    return 1 + torch.minimum(cut, budget)
