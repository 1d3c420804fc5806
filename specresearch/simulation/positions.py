"""What a recording says of a draft at each token of an output, and what stands in for the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from specresearch.recording.recording import RecordedRequest
from specresearch.simulation.acceptance import block_bound

NUM_NEIGHBOURS = 50  # positions among which one stands in for another
_FILLED = ("odds", "scores", "expected")


@dataclass(frozen=True)
class Estimates:
    """The drafter's and the rule's estimates at each position; empty if they are unknown.

    Attributes:
        scores: The drafter's own probability of its draft.
        expected: The probability that the draft is accepted.
    """

    scores: Sequence[float] = ()
    expected: Sequence[float] = ()


@dataclass(frozen=True, eq=False)
class Positions:
    """What is known of drafts at each of the E tokens of a request's output.

    Attributes:
        is_judged: True where a draft was judged.
        is_accepted: True where it was accepted.
        odds: q / p of the token: infinite for a point mass on it, NaN where it is unknown.
        threshold: The uniform draw below which the recorded rule accepted the draft.
        logprobs: The target's.
        scores: The drafter's own probability of the draft.
        expected: The probability that the draft is accepted, NaN where the rule gives none.
    """

    is_judged: Bool[np.ndarray, " E"]
    is_accepted: Bool[np.ndarray, " E"]
    odds: Float[np.ndarray, " E"]
    threshold: Float[np.ndarray, " E"]
    logprobs: Float[np.ndarray, " E"]
    scores: Float[np.ndarray, " E"]
    expected: Float[np.ndarray, " E"]

    @staticmethod
    def of(request: RecordedRequest, *, outcome_only: bool, is_block: bool) -> "Positions":
        """Return what the steps of a request say.

        Args:
            outcome_only: Nothing is known but what happened, as under a lossy rule.
            is_block: The recorded rule judged blocks.
        """
        num = request.num_tokens
        is_judged, is_accepted = np.zeros((2, num), dtype=bool)
        odds, threshold, scores, expected = np.full((4, num), np.nan)
        for step in request.steps:
            num_judged = min(step.num_new, step.depth)
            span = slice(step.position, step.position + num_judged)
            is_judged[span] = True
            is_accepted[span] = np.arange(num_judged) < step.num_accepted
            if outcome_only or len(step.q) == 0:
                odds[span] = np.where(is_accepted[span], np.inf, 0.0)
            else:
                with np.errstate(divide="ignore"):
                    odds[span] = request.q[span].astype(float) / request.p[span]
            thresholds = _block_thresholds(odds[span]) if is_block else odds[span]
            threshold[span] = np.minimum(thresholds, 1.0)
            if len(step.scores):
                scores[span] = step.scores[:num_judged]
            if len(step.expected):
                expected[span] = step.expected[:num_judged]
        return Positions(
            is_judged=is_judged,
            is_accepted=is_accepted,
            odds=odds,
            threshold=threshold,
            logprobs=request.logprobs.astype(float),
            scores=scores,
            expected=expected,
        )

    def as_recorded(self, uniforms: Float[np.ndarray, " E"]) -> Float[np.ndarray, " E"]:
        """Return draws under which the recorded rule decides as it did."""
        threshold = np.nan_to_num(self.threshold).clip(0, 1)
        accepting = uniforms * threshold
        refusing = threshold + uniforms * (1 - threshold)
        as_judged = np.where(self.is_accepted, accepting, refusing)
        return np.where(self.is_judged, as_judged, uniforms)


class StandIns:
    """Positions with a draft, which stand in for those without one."""

    def __init__(self, known: Sequence[Positions]) -> None:
        # What is missing lies behind accepted drafts, so such positions stand in if they suffice.
        masks = [positions.is_judged & _follows_accepted(positions) for positions in known]
        if sum(int(mask.sum()) for mask in masks) < NUM_NEIGHBOURS:
            masks = [positions.is_judged for positions in known]
        values = {name: _joined(known, name, masks) for name in ("logprobs", *_FILLED)}
        order = np.argsort(values["logprobs"], kind="stable")
        self._values = {name: column[order] for name, column in values.items()}

    def fill(self, positions: Positions, rng: np.random.Generator) -> Positions:
        """Return the positions with odds, scores and expectations everywhere.

        They come from positions at which the target was about as sure.
        """
        is_missing = ~positions.is_judged
        logprobs = self._values["logprobs"]
        num = len(logprobs)
        if not is_missing.any() or not num:
            return replace(positions, odds=np.where(is_missing, 0.0, positions.odds))
        nearest = np.searchsorted(logprobs, positions.logprobs[is_missing])
        first = np.clip(nearest - NUM_NEIGHBOURS // 2, 0, max(num - NUM_NEIGHBOURS, 0))
        chosen = first + rng.integers(0, min(NUM_NEIGHBOURS, num), len(first))
        filled = {}
        for name in _FILLED:
            filled[name] = getattr(positions, name).copy()
            filled[name][is_missing] = self._values[name][chosen]
        return replace(positions, **filled)


def _block_thresholds(odds: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
    """Return the draws below which block verification accepts each draft of a run."""
    bound = 1.0
    thresholds = []
    for ratio in odds.tolist():
        thresholds.append(ratio / bound if bound else float(ratio > 0))
        bound = block_bound(bound, ratio)
    return np.array(thresholds)


def _follows_accepted(positions: Positions) -> Bool[np.ndarray, " E"]:
    is_accepted = positions.is_judged & positions.is_accepted
    return np.concatenate([[False], is_accepted[:-1]])


def _joined(
    known: Sequence[Positions], name: str, masks: Sequence[Bool[np.ndarray, " _"]]
) -> Float[np.ndarray, " P"]:
    parts = [np.empty(0)]
    for positions, mask in zip(known, masks, strict=True):
        parts.append(getattr(positions, name)[mask])
    return np.concatenate(parts)
