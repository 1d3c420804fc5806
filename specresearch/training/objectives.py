"""Training objectives: distances between the target's distribution p and the draft's q.

A row is one position of a text in one drafting step. The target always comes first.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.sampling import at_least_float32

MIN_LOG_PROB = -1e4
CHUNK_ROWS = 128

Logits = Float[Tensor, "R V"]
Labels = Int[Tensor, " R"]
Losses = Float[Tensor, " R"]
Readout = Callable[[Float[Tensor, "R H"]], Float[Tensor, "R V"]]


class Objective(ABC):
    """A loss in nats for each row.

    No log-probability is below -1e4, that of a logit of -inf included, so that losses and gradients
    stay finite for masked vocabularies. Losses are not scaled by the squared temperature.

    The temperature applies to target and draft, and is ideally that of decoding.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"objective.temperature={temperature} must be above 0, since an argmax has no "
                "gradient; train at 1 for greedy decoding"
            )
        self.temperature = temperature

    @abstractmethod
    def __call__(self, target_logits: Logits, draft_logits: Logits, labels: Labels) -> Losses:
        """Compute losses in float32, or float64 for float64 logits.

        Logits are over the draft vocabulary. Labels are the indices in it of the text's next
        tokens, -1 for a token outside.
        """

    def scaled(self, logits: Logits) -> Logits:
        """Return logits at the temperature, in float32 or better."""
        logits = at_least_float32(logits)
        return logits if self.temperature == 1 else logits / self.temperature

    def log_probs(self, logits: Logits) -> Logits:
        """Return finite log-probabilities at the temperature."""
        # a clamp costs a CPU a tenth of what a mask does, and lets no gradient pass either
        return self.scaled(logits).log_softmax(-1).clamp(min=MIN_LOG_PROB)


class CrossEntropy(Objective):
    """-log q(label): learns from the text alone; rows without a label have no loss."""

    def __call__(self, target_logits: Logits, draft_logits: Logits, labels: Labels) -> Losses:
        return F.nll_loss(self.log_probs(draft_logits), labels, ignore_index=-1, reduction="none")


class Divergence(Objective):
    """An objective of p and q alone, whatever the text's next token; 0 if they are equal."""

    def __call__(self, target_logits: Logits, draft_logits: Logits, labels: Labels) -> Losses:
        return self.between(self.log_probs(target_logits), self.log_probs(draft_logits))

    @abstractmethod
    def between(self, log_p: Logits, log_q: Logits) -> Losses:
        """Return the divergence of finite log-probabilities."""


class ForwardKL(Divergence):
    """KL(p || q): q covers everything the target may say (DistillSpec, arXiv 2310.08461)."""

    def between(self, log_p: Logits, log_q: Logits) -> Losses:
        return kl(log_p, log_q)


class ReverseKL(Divergence):
    """KL(q || p): q avoids what the target would not say (DistillSpec, arXiv 2310.08461)."""

    def between(self, log_p: Logits, log_q: Logits) -> Losses:
        return kl(log_q, log_p)


class JensenShannon(Divergence):
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q (GKD, arXiv 2306.13649).

    It is bounded by log 2. Near 0 it approaches beta times forward KL, near 1 it approaches
    1 - beta times reverse KL.
    """

    def __init__(self, beta: float = 0.5, temperature: float = 1.0) -> None:
        super().__init__(temperature)
        if not 0 < beta < 1:
            raise ValueError(
                f"objective.beta={beta} must lie between 0 and 1, where every divergence is 0; "
                "use objective=forward_kl or objective=reverse_kl"
            )
        self.beta = beta

    def between(self, log_p: Logits, log_q: Logits) -> Losses:
        log_m = torch.logaddexp(log_p + math.log(self.beta), log_q + math.log1p(-self.beta))
        return self.beta * kl(log_p, log_m) + (1 - self.beta) * kl(log_q, log_m)


class TotalVariation(Divergence):
    """Half the sum of |p - q|, which is 1 - acceptance (DistillSpec, arXiv 2310.08461)."""

    def between(self, log_p: Logits, log_q: Logits) -> Losses:
        return total_variation(log_p, log_q)


class NegLogAcceptance(Divergence):
    """-log of the acceptance sum min(p, q) (LK losses, arXiv 2602.23881).

    Its gradient is that of total variation divided by the acceptance, so it does not vanish where
    p and q barely overlap.
    """

    def between(self, log_p: Logits, log_q: Logits) -> Losses:
        return -torch.minimum(log_p, log_q).logsumexp(-1)


class KLTVHybrid(Divergence):
    """lambda KL(p || q) + (1 - lambda) TV(p, q), lambda = exp(-decay acceptance) per row.

    It moves from KL to total variation as a row improves; no gradient flows through lambda (LK
    losses, arXiv 2602.23881).
    """

    def __init__(self, decay: float = 3.0, temperature: float = 1.0) -> None:
        super().__init__(temperature)
        if not decay >= 0:
            raise ValueError(
                f"objective.decay={decay} must be 0 (forward KL) or above, "
                "for the weight of KL to stay below 1"
            )
        self.decay = decay

    def between(self, log_p: Logits, log_q: Logits) -> Losses:
        distance = total_variation(log_p, log_q)
        weight = (self.decay * (distance.detach() - 1)).exp()
        return weight * kl(log_p, log_q) + (1 - weight) * distance


def kl(log_p: Logits, log_q: Logits) -> Losses:
    """Return KL(p || q) of finite log-probabilities."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def total_variation(log_p: Logits, log_q: Logits) -> Losses:
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def indices_in(labels: Labels, target_ids: Int[Tensor, " D"]) -> Labels:
    """Return the index of each label in `target_ids`, -1 for a label that is not there."""
    ordered, indices = target_ids.sort()
    candidates = torch.searchsorted(ordered, labels.contiguous()).clamp(max=len(ordered) - 1)
    return torch.where(ordered[candidates] == labels, indices[candidates], -1)
