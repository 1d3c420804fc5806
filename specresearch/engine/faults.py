"""Find rows with NaN or infinite values, which then fail alone."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.acceptance import own_probability
from specresearch.batch import DRAFTER_FAULT, TARGET_FAULT
from specresearch.proposal import Proposal


def find_faults(proposal: Proposal, logits: Float[Tensor, "B N V"]) -> Int[Tensor, " B"]:
    """Return a key of `FAULTS` for each row, or 0.

    `TARGET_FAULT` means that the target's logits are NaN or infinite (a token excluded by -inf is
    fine), `DRAFTER_FAULT` that the drafter's probabilities are. Every node that a rule may accept
    counts. This never waits for the device.
    """
    acceptable = proposal.acceptable
    largest = logits.amax(-1)  # NaN if any is; -inf if no token is possible
    faults = _any_non_finite(largest, acceptable) * TARGET_FAULT
    drafted = proposal.scores
    if proposal.draft_probs is not None:
        # A NaN anywhere in a distribution makes the draft's own probability NaN too.
        own = own_probability(proposal.draft_probs, proposal)
        drafted = own if drafted is None else own + drafted
    if drafted is None:
        return faults
    drafter_faults = _any_non_finite(drafted, acceptable) * DRAFTER_FAULT
    return torch.where(faults > 0, faults, drafter_faults)


def _any_non_finite(
    values: Float[Tensor, "B N"], acceptable: Bool[Tensor, "B N"]
) -> Bool[Tensor, " B"]:
    is_finite = values - values == 0  # NaN and infinity leave NaN
    return (acceptable & ~is_finite).any(1)
