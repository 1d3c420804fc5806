"""Rows whose numbers cannot be trusted: they fail alone, and their neighbours go on."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.acceptance import own_probability
from specresearch.batch import DRAFTER_FAULT, TARGET_FAULT
from specresearch.proposal import Proposal


def find_faults(proposal: Proposal, logits: Float[Tensor, "B N V"]) -> Int[Tensor, " B"]:
    """Return `TARGET_FAULT` for each row with target logits that are NaN or infinite (tokens ruled out
    by -inf are fine), `DRAFTER_FAULT` for one whose drafter's probabilities are, and 0 otherwise.

    Looks at every node that a rule may accept, and never waits for the device.
    """
    used = proposal.acceptable
    largest = logits.amax(-1)  # NaN if any is; -inf if no token is possible
    faults = _any_strange(largest, used) * TARGET_FAULT
    for values in _probabilities(proposal):
        drafter_faults = _any_strange(values, used) * DRAFTER_FAULT
        faults = torch.where(faults > 0, faults, drafter_faults)
    return faults


def _probabilities(proposal: Proposal) -> list[Float[Tensor, "B N"]]:
    """What the drafter says of its own drafts; a NaN anywhere in a distribution is one here."""
    found = [] if proposal.scores is None else [proposal.scores]
    if proposal.draft_probs is not None:
        found.append(own_probability(proposal.draft_probs, proposal))
    return found


def _any_strange(values: Float[Tensor, "B N"], used: Bool[Tensor, "B N"]) -> Bool[Tensor, " B"]:
    return (~values.isfinite() & used).any(1)
