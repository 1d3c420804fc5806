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
from specresearch.sampling import argmax
from specresearch.training.objectives import Labels, Logits, indices_in
from specresearch.training.students import Student

CHUNK_ROWS = 64


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

        Entry (i, t) is the probability that token t of the output is accepted as draft i of a step,
        given that the drafts before it were. K is `num_drafts`, or less if the student drafts
        fewer. Entries of the prompt are 0.
        """
        token_ids = torch.tensor([[*prompt, *output]], device=self.target.device)
        num_tokens = token_ids.shape[1]
        num_drafts = min(self.num_drafts, self.student.max_drafts or self.num_drafts)
        layers = (FINAL_NORM, *self.student.hidden_layers)
        final, *hidden = self.target.forward_whole(token_ids, layers).hidden
        table = torch.zeros((num_drafts, num_tokens), dtype=torch.float64)
        log_p = None
        if not self._is_certain:
            log_p = self._target_log_probs(final[0], token_ids[0], len(prompt))
        steps = list(self.student.steps(token_ids, hidden, num_drafts))[:num_drafts]
        for i, step in enumerate(steps):
            offset = step.shift + 1
            num_rows = min(step.states.shape[1], num_tokens - offset)
            first_row = max(step.first_row, len(prompt) - offset)
            for begin in range(first_row, num_rows, CHUNK_ROWS):
                end = min(begin + CHUNK_ROWS, num_rows)
                columns = slice(begin + offset, end + offset)
                logits = step.readout(step.states[0, begin:end])
                labels = token_ids[0, columns]
                if step.target_ids is not None:
                    labels = indices_in(labels, step.target_ids)
                if log_p is None:
                    probs = (argmax(logits) == labels).double()
                else:
                    log_q = self._log_probs(logits, labels.clamp(min=0))
                    probs = (log_q - log_p[columns]).exp().clamp(max=1)
                table[i, columns] = probs.masked_fill(labels < 0, 0).cpu()
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

    @property
    def _is_certain(self) -> bool:
        """True if the text alone decides whether a draft is accepted."""
        return self.temperature == 0 or not self.student.samples

    def _target_log_probs(
        self, final: Float[Tensor, "T H"], token_ids: Int[Tensor, " T"], num_prompt_tokens: int
    ) -> Float[Tensor, " T"]:
        """Return the target's log-probability of every token of the output; 0 for the prompt's."""
        log_probs = [token_ids.new_zeros(num_prompt_tokens, dtype=torch.float64)]
        states = final[num_prompt_tokens - 1 : -1].split(CHUNK_ROWS)
        labels = token_ids[num_prompt_tokens:].split(CHUNK_ROWS)
        for rows, tokens in zip(states, labels, strict=True):
            log_probs.append(self._log_probs(self.target.readout(rows), tokens))
        return torch.cat(log_probs)

    def _log_probs(self, logits: Logits, labels: Labels) -> Float[Tensor, " R"]:
        """Return the log-probability of one token of each row at the temperature."""
        scaled = logits.double() / self.temperature
        return scaled.gather(1, labels[:, None])[:, 0] - scaled.logsumexp(-1)


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
