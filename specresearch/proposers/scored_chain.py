"""Chains of drafts with the draft model's probability of each."""

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.proposal import Proposal, Topology, upload


def chance_of(logits: Float[Tensor, "B M V"], tokens: Int[Tensor, "B M"]) -> Float[Tensor, "B M"]:
    """Return the draft's probability of tokens given their parents."""
    log_q = logits.gather(2, tokens[:, :, None])[:, :, 0] - logits.logsumexp(-1)
    return log_q.exp()


def scored_chain(
    token_ids: Int[Tensor, "B N"],
    budget: Sequence[int],
    scores: Float[Tensor, "B M"],
    draft_probs: Float[Tensor, "B N V"] | None = None,
) -> Proposal:
    """Return a chain with the draft's probability of every node given its parent."""
    lengths = tuple(allowed + 1 for allowed in budget)
    return Proposal(
        token_ids=token_ids,
        topology=Topology.chain(token_ids.shape[1], token_ids.device),
        lengths=upload(lengths, token_ids.device),
        draft_probs=draft_probs,
        scores=F.pad(scores, (1, 0), value=1.0),
        host_lengths=lengths,
    )
