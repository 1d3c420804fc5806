"""Threshold acceptance trusts the drafter wherever it is confident."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from specresearch.acceptance.base import (
    drafts_on_path,
    longest_path,
    node_rows,
    own_probability,
)
from specresearch.drawing import draw
from specresearch.proposal import DraftKind, Proposal, Verdict, upload
from specresearch.sampling import ACCEPT_STREAM, SamplingBatch, logits_to_probs
from specresearch.sampling_params import SamplingParams

WORKLOADS = {"code": 0.75, "structured": 0.65, "prose": 0.5}
NO_PROBABILITIES = (
    "acceptance=threshold compares the drafter's own probabilities, and there are none for "
    "requests with temperature=0, nor for deterministic drafts; use a temperature above 0 and "
    "sampled drafts, or drafts with scores and acceptance.entropy_scale=0"
)


class Threshold:
    """Lossy at every temperature, 0 included: the target only gives the token after the path.

    The rule compares the drafter's probability of its own token: `Proposal.scores`, or else
    `draft_probs`, which a greedy request does not have (ValueError). Works for chains and trees;
    the longest accepted path is kept.

    Args:
        threshold: A draft is accepted when its probability is above it. None uses the workload's.
            A request's own `SamplingParams.draft_threshold` takes precedence.
        workload: One of `WORKLOADS`.
        entropy_scale: Compare softmax(log q / T) in place of q, with T = exp(entropy_scale H(q))
            and H in nats. Above 0 an uncertain drafter must be more confident, below 0 less; a
            certain one (H = 0) is not affected. Needs `draft_probs`.
    """

    lossless = False
    asks_target = False

    def __init__(
        self, threshold: float | None = None, workload: str = "prose", entropy_scale: float = 0.0
    ) -> None:
        if workload not in WORKLOADS:
            raise ValueError(
                f"acceptance.workload={workload!r} is not one of {', '.join(WORKLOADS)}; "
                "choose one of them, or give a number as acceptance.threshold"
            )
        if threshold is not None and not 0 <= threshold <= 1:
            raise ValueError(
                f"acceptance.threshold={threshold} is compared with a probability; "
                "it must lie in [0, 1]"
            )
        self.threshold = WORKLOADS[workload] if threshold is None else threshold
        self.entropy_scale = entropy_scale

    def refuses(self, kind: DraftKind) -> str | None:
        if self.entropy_scale and not kind.sampled:
            return (
                f"entropy_scale={self.entropy_scale} needs the distributions that drafts were "
                "sampled from"
            )
        if not (kind.sampled or kind.scored):
            return "they come without the probabilities that the rule compares"
        return None

    def refuses_sampling(self, sampling: SamplingParams, kind: DraftKind) -> str | None:
        uses_scores = kind.scored and self.entropy_scale == 0
        if uses_scores or not kind.sampled or not sampling.is_greedy:
            return None
        return NO_PROBABILITIES

    def __call__(
        self, proposal: Proposal, target_logits: Float[Tensor, "B N V"], sampling: SamplingBatch
    ) -> Verdict:
        accepted = proposal.acceptable
        if proposal.topology.num_nodes > 1:
            is_confident = self._confidence(proposal, sampling) > self._thresholds(sampling)
            accepted = accepted & is_confident
        path, num_accepted = longest_path(accepted, proposal.topology)
        end = path.gather(1, num_accepted[:, None])
        on_path = None
        if sampling.has_penalty:
            on_path = drafts_on_path(proposal).expand(len(path), -1, -1)
            on_path = on_path.gather(1, end[:, :, None].expand(-1, -1, on_path.shape[2]))
        logits = node_rows(target_logits, end)
        p_end = logits_to_probs(logits, sampling, proposal.token_ids, on_path)[:, 0]
        return Verdict(path, num_accepted, draw(p_end, sampling.uniforms(ACCEPT_STREAM, 1)[:, 0]))

    def accepts(
        self,
        proposal: Proposal,
        target_probs: Float[Tensor, "B N V"],
        sampling: SamplingBatch | None = None,
    ) -> Bool[Tensor, "B N V"] | None:
        """Return which tokens would be accepted after each node, for `output_shift`.

        Args:
            sampling: None uses the rule's own threshold for all rows.

        Returns:
            None if only the scores of the drafted tokens are known.
        """
        if self._uses_scores(proposal) or proposal.draft_probs is None:
            return None
        confidence = temper_by_entropy(proposal.draft_probs, self.entropy_scale)
        if sampling is None:
            return confidence > self.threshold
        return confidence > self._thresholds(sampling)[:, :, None]

    def _thresholds(self, sampling: SamplingBatch) -> Float[Tensor, "B 1"]:
        thresholds = []
        for params in sampling.params:
            requested = params.draft_threshold
            thresholds.append(self.threshold if requested is None else requested)
        return upload(thresholds, sampling.device)[:, None]

    def _uses_scores(self, proposal: Proposal) -> bool:
        return proposal.scores is not None and self.entropy_scale == 0

    def _confidence(self, proposal: Proposal, sampling: SamplingBatch) -> Float[Tensor, "B N"]:
        if self._uses_scores(proposal):
            assert proposal.scores is not None
            return proposal.scores
        if proposal.draft_probs is None or any(params.is_greedy for params in sampling.params):
            raise ValueError(NO_PROBABILITIES)
        probs = temper_by_entropy(proposal.draft_probs, self.entropy_scale)
        return own_probability(probs, proposal)


def temper_by_entropy(
    probs: Float[Tensor, "B N V"], entropy_scale: float
) -> Float[Tensor, "B N V"]:
    """Soften each row by its entropy, or sharpen it if `entropy_scale` is below 0.

    Returns softmax(log q / T) with T = exp(entropy_scale H(q)), H in nats.
    """
    if entropy_scale == 0:
        return probs
    temperature = (entropy_scale * torch.special.entr(probs).sum(-1, keepdim=True)).exp()
    return (probs.log() / temperature).softmax(-1)
