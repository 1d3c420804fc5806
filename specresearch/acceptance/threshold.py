"""Threshold acceptance: trust the drafter wherever it is sure of itself."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from specresearch.acceptance.base import drafts_on_path, longest_path, own_probability
from specresearch.proposal import DraftKind, Proposal, Verdict, upload
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch, draw, logits_to_probs

WORKLOADS = {"code": 0.75, "structured": 0.65, "prose": 0.5}


class Threshold:
    """Lossy at every temperature, 0 included: the target says only the token after the accepted path.

    Compared is what the drafter thought of its own token: `Proposal.scores`, or else `draft_probs`, which say nothing where a
    request is greedy (ValueError). Chains and trees; the longest accepted path is kept.

    threshold: a draft is accepted when its probability is above it; None takes the workload's, one of `WORKLOADS`. A request's
        own `SamplingParams.draft_threshold` goes before it.
    entropy_scale: instead of q compare softmax(log q / T), T = exp(entropy_scale H(q)), H in nats. Above 0 an undecided
        drafter needs more to be believed, below 0 less, and a sure one (H = 0) is taken at its word. Needs `draft_probs`.
    """

    lossless = False

    def __init__(
        self, threshold: float | None = None, workload: str = "prose", entropy_scale: float = 0.0
    ) -> None:
        if workload not in WORKLOADS:
            raise ValueError(
                f"acceptance.workload={workload!r} is not one of {', '.join(WORKLOADS)}; or give a number as "
                "acceptance.threshold"
            )
        if threshold is not None and not 0 <= threshold <= 1:
            raise ValueError(
                f"acceptance.threshold={threshold} is compared with a probability; it must lie in [0, 1]"
            )
        self.threshold = WORKLOADS[workload] if threshold is None else threshold
        self.entropy_scale = entropy_scale

    def refuses(self, kind: DraftKind) -> str | None:
        if self.entropy_scale and not kind.sampled:
            return f"entropy_scale={self.entropy_scale} needs the distributions that drafts were sampled from"
        if not (kind.sampled or kind.scored):
            return "they come without the probabilities that the rule compares"
        return None

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        sure = proposal.acceptable
        if proposal.topology.num_nodes > 1:
            sure = sure & (self._confidence(proposal, sampling) > self._thresholds(sampling))
        path, num_accepted = longest_path(sure, proposal.topology)
        end = path.gather(1, num_accepted[:, None])[:, :, None]
        on_path = None
        if sampling.has_penalty:
            above = drafts_on_path(proposal).expand(len(path), -1, -1)
            on_path = above.gather(1, end.expand(-1, -1, above.shape[2]))
        logits = target_logits.gather(1, end.expand(-1, -1, target_logits.shape[2]))
        p_end = logits_to_probs(logits, sampling, proposal.token_ids, on_path)[:, 0]
        return Verdict(path, num_accepted, draw(p_end, sampling.uniforms(ACCEPT_STREAM, 1)[:, 0]))

    def accepts(
        self,
        proposal: Proposal,
        target_probs: Float[Tensor, "B N V"],
        sampling: SamplingBatch | None = None,
    ) -> Bool[Tensor, "B N V"] | None:
        """Which tokens would be accepted after each node, for `output_shift`; None where only the drafted ones' scores are
        known. Without `sampling` the rule's own threshold goes for all rows."""
        if self._uses_scores(proposal) or proposal.draft_probs is None:
            return None
        return temper_by_entropy(proposal.draft_probs, self.entropy_scale) > (
            self.threshold if sampling is None else self._thresholds(sampling)[:, :, None]
        )

    def _thresholds(self, sampling: SamplingBatch) -> Float[Tensor, "B 1"]:
        own = [p.draft_threshold for p in sampling.params]
        return upload(
            [self.threshold if value is None else value for value in own], sampling.device
        )[:, None]

    def _uses_scores(self, proposal: Proposal) -> bool:
        return proposal.scores is not None and self.entropy_scale == 0

    def _confidence(self, proposal: Proposal, sampling: SamplingBatch) -> Float[Tensor, "B N"]:
        if self._uses_scores(proposal):
            assert proposal.scores is not None
            return proposal.scores
        if proposal.draft_probs is None or any(p.is_greedy for p in sampling.params):
            raise ValueError(
                "acceptance=threshold compares the drafter's own probabilities, and there are none for requests with "
                "temperature=0, nor for deterministic drafts; use a temperature above 0 and sampled drafts, or drafts with "
                "scores and acceptance.entropy_scale=0"
            )
        return own_probability(
            temper_by_entropy(proposal.draft_probs, self.entropy_scale), proposal
        )


def temper_by_entropy(
    probs: Float[Tensor, "B N V"], entropy_scale: float
) -> Float[Tensor, "B N V"]:
    """softmax(log q / T) of each row, T = exp(entropy_scale H(q)): softened (above 0) or sharpened (below) by its entropy."""
    if entropy_scale == 0:
        return probs
    temperature = (entropy_scale * torch.special.entr(probs).sum(-1, keepdim=True)).exp()
    return (probs.log() / temperature).softmax(-1)
