"""Accept a draft when it is the target's likeliest token."""

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.acceptance.base import drafts_on_path, follow, longest_prefix
from specresearch.proposal import DraftKind, Proposal, Verdict
from specresearch.sampling import SamplingBatch, argmax, penalize


class Greedy:
    """Exact for temperature 0; a request that samples is a ValueError. No softmax is built."""

    lossless = True

    def refuses(self, kind: DraftKind) -> str | None:
        return None

    def __call__(self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch) -> Verdict:
        if not sampling.all_greedy:
            warm = next(p for p in sampling.params if not p.is_greedy)
            raise ValueError(
                f"acceptance=greedy is exact for temperature 0 only, and a request has temperature={warm.temperature}; "
                "use acceptance=rejection"
            )
        return accept_argmax(proposal, target_logits, sampling)


def accept_argmax(proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch) -> Verdict:
    """The longest path on which every draft is the argmax after its parent. Chains and trees, any kind of draft."""
    tokens, topology = proposal.token_ids, proposal.topology
    if sampling.has_penalty:
        target_logits = penalize(target_logits, sampling, tokens, drafts_on_path(proposal))
    best = argmax(target_logits)  # [B, N]
    if topology.is_chain:
        agrees = (tokens[:, 1:] == best[:, :-1]) & proposal.acceptable[:, 1:]
        path, num_accepted = longest_prefix(agrees)
        end = num_accepted
    else:
        children = topology.children.expand(tokens.shape[0], -1, -1)
        index = children.clamp(min=0).flatten(1)
        usable = proposal.acceptable.gather(1, index).view_as(children) & (children >= 0)
        agrees = (tokens.gather(1, index).view_as(children) == best[:, :, None]) & usable
        first = agrees.long().argmax(2, keepdim=True)
        chosen = torch.where(agrees.any(2), children.gather(2, first)[:, :, 0], -1)
        path, num_accepted = follow(chosen, topology.max_depth)
        end = path.gather(1, num_accepted[:, None])[:, 0]
    return Verdict(path, num_accepted, best.gather(1, end[:, None])[:, 0])
