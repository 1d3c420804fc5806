"""Compare what decoding accepts with what training predicts for the same texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from specresearch.engine import Engine
from specresearch.metrics import StepRecord
from specresearch.request import Request
from specresearch.sampling import SamplingParams
from specresearch.training.acceptance_estimate import (
    AcceptanceEstimate,
    AcceptancePredictor,
    expected_steps,
)

MAX_DEVIATION = 5.0
MIN_VARIANCE = 4.0
CERTAIN = 1e-9
FLIP_TOLERANCE = {torch.float64: 0.0, torch.float32: 0.01}
FLIP_TOLERANCE_16_BITS = 0.05


@dataclass(frozen=True)
class DecodedText:
    """A decoded request.

    Attributes:
        steps: Root index, drafted tokens and accepted tokens of each step.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    steps: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Decisions:
    """Every draft whose predecessors were all accepted.

    Attributes:
        position: Position in its step's draft.
        prob: Predicted acceptance probability.
        accepted: 1 if it was accepted, else 0.
    """

    position: NDArray[np.int64]
    prob: NDArray[np.float64]
    accepted: NDArray[np.float64]


@dataclass(frozen=True)
class Parity:
    """How far decoding deviates from prediction.

    Attributes:
        measured: Tokens per step in decoding.
        z: Deviations of accepted from predicted drafts in standard deviations: by position of the
            draft, without rarely reached ones; last, whether likelier drafts are accepted more
            often, by as much as predicted. Empty if chance decides nothing.
        flipped: Share of deterministic decisions that went the other way.
        tolerance: Largest such share that rounding explains.
    """

    measured: float
    predicted: AcceptanceEstimate
    z: NDArray[np.float64]
    flipped: float
    tolerance: float

    @property
    def deviation(self) -> float:
        return float(abs(self.z).max(initial=0.0))

    @property
    def holds(self) -> bool:
        return self.deviation < MAX_DEVIATION and self.flipped <= self.tolerance

    def __str__(self) -> str:
        return (
            f"decoding accepts {self.measured:.3f} tokens a step where training predicts "
            f"{self.predicted.mean_acceptance_length:.3f}: sampled decisions deviate by "
            f"{self.deviation:.1f} standard deviations, and {self.flipped:.1%} of the "
            "deterministic ones went the other way"
        )


def decode(
    predictor: AcceptancePredictor,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    batch_size: int = 8,
) -> list[DecodedText]:
    """Decode prompts with the student's drafts, ignoring end tokens so that limits end texts."""
    records: list[StepRecord] = []
    engine = Engine(
        predictor.target,
        predictor.student.proposer(predictor.num_drafts),
        max_batch_size=batch_size,
        observers=[lambda step: records.append(step.record)],
    )
    sampling = replace(sampling, ignore_eos=True)
    requests = [Request(prompt, sampling, str(i)) for i, prompt in enumerate(prompts)]
    outputs = {output.id: output.checked().token_ids for output in engine.generate(requests)}
    steps: dict[str, list[tuple[int, int, int]]] = {request.id: [] for request in requests}
    for record in records:
        rows = zip(record.context, record.num_draft_tokens, record.num_accepted_tokens, strict=True)
        for id, row in zip(record.request_ids, rows, strict=True):
            steps[id].append(row)
    return [
        DecodedText(tuple(request.prompt_ids), outputs[request.id], tuple(steps[request.id]))
        for request in requests
    ]


def compare(predictor: AcceptancePredictor, texts: Sequence[DecodedText]) -> Parity:
    """Compare what was accepted with the prediction for the same texts."""
    if not texts:
        raise ValueError("no decoded texts to compare predictions with")
    tables = [predictor.probs(text.prompt, text.output) for text in texts]
    estimates = [
        expected_steps(table, len(text.prompt)) for table, text in zip(tables, texts, strict=True)
    ]
    num_tokens = sum(len(text.output) for text in texts)
    decisions = collect_decisions(texts, tables)
    is_certain = (decisions.prob < CERTAIN) | (decisions.prob > 1 - CERTAIN)
    flipped = 0.0
    if is_certain.any():
        flipped = float((abs(decisions.accepted - decisions.prob)[is_certain] > 0.5).mean())
    return Parity(
        measured=num_tokens / sum(len(text.steps) for text in texts),
        predicted=reduce(add, estimates),
        z=_deviations(decisions, ~is_certain),
        flipped=flipped,
        tolerance=FLIP_TOLERANCE.get(predictor.target.dtype, FLIP_TOLERANCE_16_BITS),
    )


def collect_decisions(
    texts: Sequence[DecodedText], tables: Sequence[Float[Tensor, "K _"]]
) -> Decisions:
    """Return the decisions of all steps; tables hold the acceptance probabilities of each text."""
    rows: list[tuple[int, float, bool]] = []
    for text, table in zip(texts, tables, strict=True):
        probs = table.numpy()
        num_drafts, num_tokens = probs.shape
        for root, drafted, accepted in text.steps:
            num_decided = min(drafted, accepted + 1, num_drafts, num_tokens - 2 - root)
            rows += [(i, probs[i, root + 1 + i], i < accepted) for i in range(num_decided)]
    position, prob, accepted = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    return Decisions(position.astype(np.int64), prob, accepted)


def _deviations(decisions: Decisions, selected: NDArray[np.bool_]) -> NDArray[np.float64]:
    position, prob = decisions.position[selected], decisions.prob[selected]
    if not np.isfinite(prob).all():
        return np.array([np.inf])
    if not len(prob):
        return np.zeros(0)
    surplus = decisions.accepted[selected] - prob
    variance = prob * (1 - prob)
    surplus_at = np.bincount(position, surplus)
    variance_at = np.bincount(position, variance)
    is_reached = variance_at >= MIN_VARIANCE
    by_position = surplus_at[is_reached] / np.sqrt(variance_at[is_reached])
    slope = prob - prob.mean()
    spread = np.sqrt((slope**2 * variance).sum())
    return np.append(by_position, (slope * surplus).sum() / spread if spread > 0 else 0.0)
