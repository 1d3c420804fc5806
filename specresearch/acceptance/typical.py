"""Typical acceptance keeps what the target finds likely, and more where the target is uncertain.

Medusa, Cai et al. (arXiv 2401.10774).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from specresearch.acceptance.base import (
    longest_path,
    node_rows,
    own_probability,
    parents_of,
    target_distribution,
)
from specresearch.acceptance.greedy import accept_argmax
from specresearch.drawing import draw
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch


class Typical:
    """Lossy, but exact at temperature 0. For chains and trees, and any kind of draft.

    The longest accepted path is kept.

    Args:
        epsilon: A draft with p above it is always accepted.
        delta: Where p is flat, p above delta exp(-H(p)) is enough; H in nats.
    """

    lossless = False
    capturable = True

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        for name, value in (("epsilon", epsilon), ("delta", delta)):
            if not 0 < value < 1:
                raise ValueError(
                    f"acceptance.{name}={value} must lie between 0 and 1, "
                    "and 0 would accept nearly everything"
                )
        self.epsilon, self.delta = epsilon, delta

    def refuses(self, kind: DraftKind) -> str | None:
        return None

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        if sampling.all_greedy:
            return accept_argmax(proposal, target_logits, sampling)
        probs = target_distribution(proposal, target_logits, sampling)
        uniforms = sampling.uniforms(ACCEPT_STREAM, 1)[:, 0]
        return accept_typical(proposal, probs, uniforms, self.epsilon, self.delta)

    def accepts(
        self,
        proposal: Proposal,
        target_probs: Float[Tensor, "B N V"],
        sampling: SamplingBatch | None = None,
    ) -> Bool[Tensor, "B N V"]:
        """Return which tokens would be accepted after each node, drafted or not."""
        return target_probs > typical_floor(target_probs, self.epsilon, self.delta)[:, :, None]


def accept_typical(
    proposal: Proposal,
    target_probs: Float[Tensor, "B N V"],
    uniforms: Float[Tensor, " B"],
    epsilon: float,
    delta: float,
) -> Verdict:
    """Apply the rule to probabilities.

    Args:
        uniforms: They draw the last token from p at the end of the path.
    """
    floor = typical_floor(target_probs, epsilon, delta).gather(1, parents_of(proposal))
    accepted = proposal.acceptable & (own_probability(target_probs, proposal) > floor)
    path, num_accepted = longest_path(accepted, proposal.topology)
    p_end = node_rows(target_probs, path.gather(1, num_accepted[:, None]))
    return Verdict(path, num_accepted, draw(p_end[:, 0], uniforms))


def typical_floor(
    probs: Float[Tensor, "B N V"], epsilon: float, delta: float
) -> Float[Tensor, "B N"]:
    """Return min(epsilon, delta exp(-H)), which the probability of an accepted token exceeds."""
    entropy = torch.special.entr(probs).sum(-1)
    return (delta * (-entropy).exp()).clamp(max=epsilon)
