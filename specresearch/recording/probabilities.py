"""The probabilities that a step gave to its drafts and to the tokens it delivered."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.acceptance.base import own_probability, target_distribution
from specresearch.engine import Step
from specresearch.proposal import Proposal
from specresearch.recording.schema import NUM_TOP

Columns = dict[str, list[Any]]


def probability_columns(step: Step) -> tuple[Columns, Columns]:
    """Return columns with values of each row's nodes, and columns of its delivered tokens."""
    proposal, logits = step.proposal, step.output.logits
    p, q = target_distribution(proposal, logits, step.batch.sampling), proposal.draft_probs
    nothing: list[list[float]] = [[] for _ in step.batch.rows]
    of_nodes = {
        "p": own_probability(p, proposal).tolist(),
        "q": nothing if q is None else own_probability(q, proposal).tolist(),
        "scores": nothing if proposal.scores is None else proposal.scores.tolist(),
    }
    nodes, new = step.delivered()
    row = torch.arange(len(new), device=logits.device)[:, None]
    log_probs = logits[row, nodes].float().log_softmax(-1)  # [B, W, V]
    top, top_ids = log_probs.topk(min(NUM_TOP, log_probs.shape[-1]))
    of_new = {
        "new_p": p[row, nodes, new],
        "new_q": _draft_probability(proposal, nodes, new),
        "new_logprobs": log_probs.gather(2, new[:, :, None])[:, :, 0],
        "top_ids": top_ids,
        "top_logprobs": top,
    }
    return of_nodes, {name: values.tolist() for name, values in of_new.items()}


def _draft_probability(
    proposal: Proposal, nodes: Int[Tensor, "B W"], new: Int[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """Return q of each delivered token; NaN after the last draft, and for point masses."""
    q = proposal.draft_probs
    if q is None:
        return torch.full(nodes.shape, torch.nan, device=nodes.device)
    row = torch.arange(len(nodes), device=nodes.device)[:, None]
    has_drafts = nodes < proposal.lengths[:, None] - 1
    return torch.where(has_drafts, q[row, nodes, new], torch.nan)
