"""Greedy acceptance keeps a draft if it is the target's likeliest token."""

from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance.base import drafts_on_path, longest_path, parents_of
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import SamplingBatch, argmax, penalize
from specresearch.sampling_params import SamplingParams


class Greedy:
    """Lossless at temperature 0, and builds no softmax.

    Raises:
        ValueError: When called with a request whose temperature is above 0.
    """

    lossless = True
    capturable = True

    def refuses(self, kind: DraftKind) -> str | None:
        return None

    def refuses_sampling(self, sampling: SamplingParams, kind: DraftKind) -> str | None:
        if sampling.is_greedy:
            return None
        return (
            "acceptance=greedy is exact for temperature 0 only, and a request has "
            f"temperature={sampling.temperature}; use acceptance=rejection"
        )

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        for params in sampling.params:
            reason = self.refuses_sampling(params, DraftKind())
            if reason is not None:
                raise ValueError(reason)
        return accept_argmax(proposal, target_logits, sampling)


def accept_argmax(
    proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
) -> Verdict:
    """Accept the longest path on which every draft is the argmax after its parent.

    Works for chains and trees, and for any kind of draft.
    """
    if sampling.has_penalty:
        on_path = drafts_on_path(proposal)
        target_logits = penalize(target_logits, sampling, proposal.token_ids, on_path)
    best = argmax(target_logits)  # [B, N]
    agrees = proposal.acceptable & (proposal.token_ids == best.gather(1, parents_of(proposal)))
    path, num_accepted = longest_path(agrees, proposal.topology)
    end = path.gather(1, num_accepted[:, None])
    return Verdict(path, num_accepted, best.gather(1, end)[:, 0])
