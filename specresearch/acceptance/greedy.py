"""Accept a draft when it is the target's likeliest token."""

from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance.base import drafts_on_path, longest_path, parents_of
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import SamplingBatch, argmax, penalize


class Greedy:
    """Exact for temperature 0; a request that samples is a ValueError. No softmax is built."""

    lossless = True

    def refuses(self, kind: DraftKind) -> str | None:
        return None

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        if not sampling.all_greedy:
            warm = next(p for p in sampling.params if not p.is_greedy)
            raise ValueError(
                f"acceptance=greedy is exact for temperature 0 only, and a request has temperature={warm.temperature}; "
                "use acceptance=rejection"
            )
        return accept_argmax(proposal, target_logits, sampling)


def accept_argmax(
    proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
) -> Verdict:
    """The longest path on which every draft is the argmax after its parent. Chains and trees, any kind of draft."""
    if sampling.has_penalty:
        target_logits = penalize(
            target_logits, sampling, proposal.token_ids, drafts_on_path(proposal)
        )
    best = argmax(target_logits)  # [B, N]
    agrees = proposal.acceptable & (proposal.token_ids == best.gather(1, parents_of(proposal)))
    path, num_accepted = longest_path(agrees, proposal.topology)
    end = path.gather(1, num_accepted[:, None])
    return Verdict(path, num_accepted, best.gather(1, end)[:, 0])
