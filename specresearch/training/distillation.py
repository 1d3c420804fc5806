"""The loss of a batch: a frozen target and a student over the same sequences, step by step."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.training.objectives import CHUNK_ROWS, Objective, chunked_loss
from specresearch.training.students import Step, Student


@dataclass
class StepTotals:
    """Sums over the rows of one drafting step: of its loss, of sum min(p, q), and of rows whose likeliest tokens agree."""

    loss: float = 0.0
    acceptance: float = 0.0
    agreeing: float = 0.0
    rows: int = 0


class Distillation(nn.Module):
    """What is trained, as a module whose forward pass is the loss.

    objective: what draft and target distributions are compared by. totals: of the batches since the caller last emptied it, by
    drafting step.
    """

    def __init__(
        self,
        student: Student,
        target: CausalLM,
        objective: Objective,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        super().__init__()
        target.model.requires_grad_(False)
        student.module.requires_grad_(True)
        self.module = student.module
        self.student, self.target, self.objective = student, target, objective
        self.chunk_rows = chunk_rows
        self.totals: dict[int, StepTotals] = {}

    def forward(
        self,
        token_ids: Int[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
        num_predicted: Tensor | int | None = None,
    ) -> Float[Tensor, ""]:
        """num_predicted: tokens to be predicted in all batches of the optimiser step, over all devices; None: in this one."""
        with torch.no_grad():
            layers = (FINAL_NORM, *self.student.hidden_layers)
            final, *hidden = self.target.forward_whole(token_ids, layers).hidden
        count = loss_mask.sum() if num_predicted is None else num_predicted
        loss = final.new_zeros((), dtype=torch.float32)
        for number, step in enumerate(self.student.steps(token_ids, hidden)):
            loss = loss + step.weight * self._step_loss(number, step, final, token_ids, loss_mask)
        return loss / count

    def _step_loss(
        self, number: int, step: Step, final: Float[Tensor, "B T H"], token_ids: Tensor, loss_mask: Tensor
    ) -> Float[Tensor, ""]:
        first = step.shift + 1  # row t guesses token t + first
        rows = token_ids.shape[1] - first
        wanted = loss_mask[:, first:]
        states = step.states[:, :rows][wanted]
        sums = chunked_loss(
            self.objective,
            final[:, step.shift : step.shift + rows][wanted],
            self.target.readout,
            states,
            step.readout,
            token_ids[:, first:][wanted],
            target_ids=step.target_ids,
            chunk_rows=self.chunk_rows,
        )
        self._count(number, sums, len(states))
        loss = self.student.token_weight * sums.loss_sum
        if step.regression is not None and self.student.feature_weight:
            predicted, truth = (side[:, :rows][wanted] for side in step.regression)
            distance = F.smooth_l1_loss(predicted.float(), truth.float(), reduction="none").mean(-1).sum()
            loss = loss + self.student.feature_weight * distance
        return loss

    def _count(self, number: int, sums: Any, rows: int) -> None:
        totals = self.totals.setdefault(number, StepTotals())
        totals.loss += float(sums.loss_sum.detach())
        totals.acceptance += float(sums.acceptance_sum)
        totals.agreeing += float(sums.num_agreeing)
        totals.rows += rows
