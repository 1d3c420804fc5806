"""What a drafter learns to minimise: how far its distribution q is from the target's p, at every position of a text.

Rows are positions, whichever text and drafting step they come from. The target is always the first argument.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.sampling import at_least_float32

IMPOSSIBLE = -1e4
CHUNK_ROWS = 128

Readout = Callable[[Float[Tensor, "R H"]], Float[Tensor, "R V"]]


class Objective(ABC):
    """A loss in nats for every row.

    temperature: of target and draft alike, best the one that will be decoded at. Losses are not multiplied by its square.
    Raises ValueError unless it is above 0.

    A logit of -inf counts as a log-probability of -1e4, so that losses and gradients stay finite where a vocabulary is masked.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"objective.temperature={temperature} must be above 0, for there is no gradient through an argmax; train at 1 "
                "for greedy decoding"
            )
        self.temperature = temperature

    @abstractmethod
    def __call__(
        self,
        target_logits: Float[Tensor, "R V"],
        draft_logits: Float[Tensor, "R V"],
        labels: Int[Tensor, " R"],
    ) -> Float[Tensor, " R"]:
        """Logits are over the tokens that can be drafted. labels: the text's own next token among them, -1 for none of them.

        Computed in float32, or in float64 for float64 logits.
        """

    def log_probs(self, logits: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Finite log-probabilities at the temperature."""
        log_probs = (at_least_float32(logits) / self.temperature).log_softmax(-1)
        return log_probs.masked_fill(log_probs == -math.inf, IMPOSSIBLE)


class CrossEntropy(Objective):
    """-log q(label): learns from the text alone. Rows without a label lose nothing."""

    def __call__(
        self,
        target_logits: Float[Tensor, "R V"],
        draft_logits: Float[Tensor, "R V"],
        labels: Int[Tensor, " R"],
    ) -> Float[Tensor, " R"]:
        return F.nll_loss(self.log_probs(draft_logits), labels, ignore_index=-1, reduction="none")


class Divergence(Objective):
    """An objective that compares p and q and does not ask how the text went on; 0 where they are equal."""

    def __call__(
        self,
        target_logits: Float[Tensor, "R V"],
        draft_logits: Float[Tensor, "R V"],
        labels: Int[Tensor, " R"],
    ) -> Float[Tensor, " R"]:
        return self.between(self.log_probs(target_logits), self.log_probs(draft_logits))

    @abstractmethod
    def between(
        self, log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
    ) -> Float[Tensor, " R"]:
        """The divergence, from finite log-probabilities."""


class ForwardKL(Divergence):
    """KL(p || q): q is to cover all that the target may say (DistillSpec, arXiv 2310.08461)."""

    def between(
        self, log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
    ) -> Float[Tensor, " R"]:
        return kl(log_p, log_q)


class ReverseKL(Divergence):
    """KL(q || p): q is to say nothing that the target would not (DistillSpec, arXiv 2310.08461)."""

    def between(
        self, log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
    ) -> Float[Tensor, " R"]:
        return kl(log_q, log_p)


class JensenShannon(Divergence):
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q (GKD, arXiv 2306.13649); at most log 2.

    beta: 0.5 is symmetric; near 0 it is beta times forward KL, near 1 it is 1 - beta times reverse KL. Raises ValueError unless
    it lies between 0 and 1.
    """

    def __init__(self, beta: float = 0.5, temperature: float = 1.0) -> None:
        super().__init__(temperature)
        if not 0 < beta < 1:
            raise ValueError(
                f"objective.beta={beta} must lie between 0 and 1, where all divergences are 0; use objective=forward_kl or "
                "objective=reverse_kl"
            )
        self.beta = beta

    def between(
        self, log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
    ) -> Float[Tensor, " R"]:
        log_m = torch.logaddexp(log_p + math.log(self.beta), log_q + math.log1p(-self.beta))
        return self.beta * kl(log_p, log_m) + (1 - self.beta) * kl(log_q, log_m)


class TotalVariation(Divergence):
    """Half the sum of |p - q|, which is 1 - acceptance (DistillSpec, arXiv 2310.08461)."""

    def between(
        self, log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
    ) -> Float[Tensor, " R"]:
        return total_variation(log_p, log_q)


class NegLogAcceptance(Divergence):
    """-log of the acceptance, sum min(p, q): total variation's gradient divided by the acceptance, so that it does not vanish
    where p and q hardly overlap (LK losses, arXiv 2602.23881).
    """

    def between(
        self, log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
    ) -> Float[Tensor, " R"]:
        return -torch.minimum(log_p, log_q).logsumexp(-1)


class KLTVHybrid(Divergence):
    """lambda KL(p || q) + (1 - lambda) TV(p, q), lambda = exp(-decay acceptance) of each row: from KL to total variation as a row
    gets better (LK losses, arXiv 2602.23881).

    No gradient flows through lambda. decay: 0 is forward KL throughout. Raises ValueError when it is negative.
    """

    def __init__(self, decay: float = 3.0, temperature: float = 1.0) -> None:
        super().__init__(temperature)
        if not decay >= 0:
            raise ValueError(
                f"objective.decay={decay} must be 0 (forward KL) or above, for the weight of KL to stay below 1"
            )
        self.decay = decay

    def between(
        self, log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
    ) -> Float[Tensor, " R"]:
        distance = total_variation(log_p, log_q)
        weight = (self.decay * (distance.detach() - 1)).exp()
        return weight * kl(log_p, log_q) + (1 - weight) * distance


def kl(log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]) -> Float[Tensor, " R"]:
    """KL(p || q) from finite log-probabilities."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def total_variation(
    log_p: Float[Tensor, "R V"], log_q: Float[Tensor, "R V"]
) -> Float[Tensor, " R"]:
    return 0.5 * (log_p.exp() - log_q.exp()).abs().sum(-1)


def places_of(labels: Int[Tensor, " R"], target_ids: Int[Tensor, " D"]) -> Int[Tensor, " R"]:
    """The place of each label in `target_ids`, -1 where it is not among them."""
    ordered, place = target_ids.sort()
    at = torch.searchsorted(ordered, labels.contiguous()).clamp(max=len(ordered) - 1)
    return torch.where(ordered[at] == labels, place[at], -1)
