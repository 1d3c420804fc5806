"""Acceptance in decoding, computed exactly from texts of the target.

If token x of an output was drafted, the engine accepted it with probability min(1, q(x) / p(x)),
or, for argmax drafts, if x was the draft. Given the text, these decisions are independent, so a
dynamic programme over the positions where steps start gives the expected number of steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.training.objectives import Labels, Logits
from specresearch.training.students import Student

CHUNK_ROWS = 512


@dataclass(frozen=True)
class AcceptanceEstimate:
    """Expected counts over texts.

    Attributes:
        tokens: Tokens that the steps deliver.
        drafted: Steps that draft each position.
        accepted: Steps that accept each position.
    """

    steps: float
    tokens: int
    drafted: NDArray[np.float64]
    accepted: NDArray[np.float64]

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step, including the target's own."""
        return self.tokens / self.steps

    @property
    def acceptance_by_position(self) -> NDArray[np.float64]:
        """Probability that a step's draft is accepted up to each position."""
        return self.accepted / np.maximum(self.drafted, 1e-300)

    def __add__(self, other: "AcceptanceEstimate") -> "AcceptanceEstimate":
        return AcceptanceEstimate(
            steps=self.steps + other.steps,
            tokens=self.tokens + other.tokens,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
        )


@dataclass(frozen=True)
class AcceptancePredictor:
    """Predicts what decoding accepts of a student's chains at a temperature."""

    student: Student
    target: CausalLM
    num_drafts: int
    temperature: float

    @torch.no_grad()
    def probs(self, prompt: Sequence[int], output: Sequence[int]) -> Float[Tensor, "K T"]:
        """Return acceptance probabilities of the tokens of one text.

        Entry (i, t) is the probability that token t is accepted as draft i of a step, given that
        the drafts before it were. K is `num_drafts`, or less if the student drafts fewer.
        """
        token_ids = torch.tensor([[*prompt, *output]], device=self.target.device)
        num_tokens = token_ids.shape[1]
        num_drafts = min(self.num_drafts, self.student.max_drafts or self.num_drafts)
        layers = (FINAL_NORM, *self.student.hidden_layers)
        final, *hidden = self.target.forward_whole(token_ids, layers).hidden
        table = torch.zeros((num_drafts, num_tokens), dtype=torch.float64)
        steps = list(self.student.steps(token_ids, hidden, num_drafts))[:num_drafts]
        for i, step in enumerate(steps):
            offset = step.shift + 1
            num_rows = min(step.states.shape[1], num_tokens - offset)
            for begin in range(step.first_row, num_rows, CHUNK_ROWS):
                end = min(begin + CHUNK_ROWS, num_rows)
                target_states = final[0, begin + step.shift : end + step.shift]
                probs = self._token_probs(
                    target_logits=self.target.readout(target_states).double(),
                    draft_logits=step.readout(step.states[0, begin:end]).double(),
                    labels=token_ids[0, begin + offset : end + offset],
                    target_ids=step.target_ids,
                )
                table[i, begin + offset : end + offset] = probs.cpu()
        table[len(steps) :] = table[len(steps) - 1]
        return table

    def estimate(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> AcceptanceEstimate:
        """Sum the estimates of texts of the target, each a prompt and its output."""
        if not texts:
            raise ValueError("no texts to estimate acceptance on")
        estimates = [
            expected_steps(self.probs(prompt, output), len(prompt)) for prompt, output in texts
        ]
        return reduce(add, estimates)

    def _token_probs(
        self,
        *,
        target_logits: Logits,
        draft_logits: Float[Tensor, "R D"],
        labels: Labels,
        target_ids: Int[Tensor, " D"] | None,
    ) -> Float[Tensor, " R"]:
        if target_ids is not None:
            full = draft_logits.new_full(target_logits.shape, float("-inf"))
            draft_logits = full.index_copy_(-1, target_ids, draft_logits)
        if self.temperature == 0 or not self.student.samples:
            return (draft_logits.argmax(-1) == labels).double()
        indices = labels[:, None]
        log_p = (target_logits / self.temperature).log_softmax(-1).gather(1, indices)[:, 0]
        log_q = (draft_logits / self.temperature).log_softmax(-1).gather(1, indices)[:, 0]
        return (log_q - log_p).exp().clamp(max=1)


def expected_steps(
    acceptance_probs: Float[Tensor, "K T"], num_prompt_tokens: int
) -> AcceptanceEstimate:
    """Return the engine's expected steps along one text.

    The first root is the last prompt token. As in decoding up to a length limit, no step drafts
    beyond the last token but one.
    """
    table = acceptance_probs.numpy()
    num_drafts, num_tokens = table.shape
    root_probs = np.zeros(num_tokens)  # probability that a step has this token as its root
    root_probs[num_prompt_tokens - 1] = 1.0
    drafted = np.zeros(num_drafts)
    accepted = np.zeros(num_drafts)
    for root in range(num_prompt_tokens - 1, num_tokens - 1):
        allowed = min(num_drafts, num_tokens - 2 - root)
        reached = root_probs[root]
        for i in range(allowed):
            drafted[i] += root_probs[root]
            kept = reached * table[i, root + 1 + i]
            accepted[i] += kept
            root_probs[root + i + 1] += reached - kept
            reached = kept
        root_probs[root + allowed + 1] += reached
    return AcceptanceEstimate(
        steps=float(root_probs[:-1].sum()),
        tokens=num_tokens - num_prompt_tokens,
        drafted=drafted,
        accepted=accepted,
    )
