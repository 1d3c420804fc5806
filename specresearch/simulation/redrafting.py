"""Drafts of recorded requests: as they were, or made again by a proposer without a model."""

from itertools import takewhile

import numpy as np
import torch
from jaxtyping import Int

from specresearch.batch import Batch
from specresearch.proposers import Proposer
from specresearch.recording.recording import RecordedRequest
from specresearch.request import Request, RequestState
from specresearch.simulation.acceptance import Chains


def is_redraftable(proposer: type) -> bool:
    """Return whether a class of proposers reads nothing but tokens."""
    if proposer.hidden_layers:
        return False
    hooks = ("bind", "lazy_prefill", "observe")
    return all(getattr(proposer, name) is getattr(Proposer, name) for name in hooks)


def redraft(
    proposer: Proposer, request: RecordedRequest, num_draft_tokens: int, vocab_size: int
) -> Chains:
    """Return the drafts of a proposer that reads tokens only, at every position of the output."""
    num_tokens = len(request.prompt_ids) + request.num_tokens + 1
    row = RequestState(
        request=Request(request.prompt_ids, request.sampling),
        slot=0,
        seed=0,
        eos_token_ids=frozenset(),
        max_total_tokens=num_tokens,
    )
    output = request.token_ids.tolist()
    lengths, num_accepted = [], []
    proposer.start([row], None)
    for position, token in enumerate(output):
        batch = Batch([row], torch.device("cpu"), vocab_size)
        proposal = proposer.propose(batch, [num_draft_tokens])
        drafts = proposal.token_ids[0, 1 : int(proposal.lengths[0])].tolist()
        lengths.append(len(drafts))
        pairs = zip(drafts, output[position:], strict=False)
        num_accepted.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        row.tokens.append(token)
    proposer.finish([0])
    return Chains(num_accepted, lengths)


def recorded_drafts(
    request: RecordedRequest,
) -> tuple[Int[np.ndarray, " E"], Int[np.ndarray, " E"]]:
    """Return what is left of the recorded path at each position, and the nodes of its draft."""
    path_left, num_nodes = np.zeros((2, request.num_tokens), dtype=np.int64)
    for step in request.steps:
        span = slice(step.position, step.position + step.num_new)
        path_left[span] = np.maximum(step.depth - np.arange(step.num_new), 0)
        num_nodes[span] = len(step.draft_ids)
    return path_left, num_nodes
