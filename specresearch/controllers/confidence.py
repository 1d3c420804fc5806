"""Verify drafts up to the first that the drafter itself was unsure of."""

from dataclasses import replace

import torch

from specresearch.batch import Batch
from specresearch.controllers.base import check_chains, check_num_draft_tokens
from specresearch.controllers.trace import TracedController
from specresearch.metrics import StepRecord
from specresearch.proposal import DraftKind, Proposal, Topology


class Confidence(TracedController):
    """Cuts a chain *behind* its first draft that has a score below `min_confidence`.

    It is lossless: the tokens up to draft i decide whether draft i + 1 is kept, so given those it
    is still a draw from the q that the acceptance rule divides by. If the unsure draft itself were
    dropped, only draws with a large q would remain: q would say how often a token was drawn and no
    longer how often it was kept, which biases the output towards the drafter's favourites
    (measured in `tests/controllers/test_confidence.py`).

    It saves verification but not drafting. On CUDA it saves nothing: to shorten the target's pass,
    the host would have to wait for the drafts. Draft & Verify
    (https://arxiv.org/abs/2309.08168) ends drafts by such a threshold, and adapts it.

    Args:
        num_draft_tokens: The most drafts; None leaves the number to the proposer.
    """

    per_request = True
    needs_scores = True

    def __init__(
        self,
        min_confidence: float = 0.4,
        num_draft_tokens: int | None = None,
        trace_every: int = 100,
    ) -> None:
        if not 0 <= min_confidence <= 1:
            raise ValueError(
                f"controller.min_confidence={min_confidence} is a probability and must lie in "
                "[0, 1]"
            )
        super().__init__(trace_every)
        self.min_confidence = min_confidence
        self.num_draft_tokens = check_num_draft_tokens(num_draft_tokens)
        self._num_drafted = 0

    def bind(self, kind: DraftKind, num_draft_tokens: int) -> None:
        check_chains(self, kind)
        if not kind.scored:
            raise ValueError(
                "controller Confidence reads the drafter's own probability of each draft, and this "
                "proposer gives none; use one that does (such as draft_model or eagle), or "
                "controller=heuristic or goodput"
            )

    def budget(self, batch: Batch) -> list[int | None]:
        return [self.num_draft_tokens] * len(batch)

    def trim(self, proposal: Proposal) -> Proposal:
        if proposal.scores is None or proposal.token_ids.shape[1] == 1:
            self._num_drafted = 0
            return proposal
        is_sure = proposal.scores[:, 1:] >= self.min_confidence
        num_sure = is_sure.long().cumprod(1).sum(1)
        num_kept = torch.minimum(num_sure + 2, proposal.lengths)  # the root counts
        drafted = proposal.host_lengths or [proposal.topology.num_nodes] * len(num_kept)
        self._num_drafted = sum(drafted) - len(drafted)
        if not num_kept.is_cpu:
            return replace(proposal, lengths=num_kept, host_lengths=None)
        lengths = num_kept.tolist()
        width = max(lengths)
        return replace(
            proposal,
            token_ids=proposal.token_ids[:, :width],
            topology=Topology.chain(width),
            lengths=num_kept,
            draft_probs=None if proposal.draft_probs is None else proposal.draft_probs[:, :width],
            scores=proposal.scores[:, :width],
            probe=None if proposal.probe is None else proposal.probe[:, :width],
            host_lengths=tuple(lengths),
        )

    def observe(self, record: StepRecord) -> None:
        num_verified = sum(record.num_draft_tokens)
        self._trace.add(num_made=self._num_drafted, num_verified=num_verified)
