"""The loss of a batch: a frozen target and a student over the same sequences, step by step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.sampling import at_least_float32
from specresearch.training.chunks import Guess, chunked_losses
from specresearch.training.objectives import CHUNK_ROWS, Objective
from specresearch.training.students import Student

CHUNK_ARRAYS = 12  # of a chunk's logits in float32, at the most
CHUNK_BYTES = 1 << 30
PRECISIONS = ("auto", "float32", "bfloat16")


class Distillation(nn.Module):
    """What is trained, as a module whose forward pass is the loss.

    objective: what draft and target distributions are compared by. precision: bfloat16 runs the student's passes by autocast,
    float32 does not, auto does where the target has 16 bits. The target runs as it decodes. A student of 16 bits is trained in
    float32; `as_decoded` gives it back as it was. chunk_rows: rows whose logits exist at once; None: so many that they take
    little memory.

    Raises ValueError for a precision that is unknown, or beyond that of the target.
    """

    def __init__(
        self,
        student: Student,
        target: CausalLM,
        objective: Objective,
        *,
        precision: str = "auto",
        chunk_rows: int | None = None,
    ) -> None:
        super().__init__()
        self.autocasts = _autocasts(precision, target)
        self.student, self.target, self.objective = student, target, objective
        self.chunk_rows = chunk_rows or _chunk_rows(target)
        target.model.requires_grad_(False)
        self.module = student.module.requires_grad_(True)
        self._dtypes = [parameter.dtype for parameter in self.module.parameters()]
        for parameter in self.module.parameters():
            if parameter.dtype.itemsize < 4:
                parameter.data = parameter.data.float()
        self._sums: Float[Tensor, "K 4"] | None = None

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

        rows, ends = loss_mask.nonzero(as_tuple=True)  # sync
        with torch.autocast(token_ids.device.type, torch.bfloat16, enabled=self.autocasts):
            guesses, distance = [], final.new_zeros((), dtype=torch.float32)
            for step in self.student.steps(token_ids, hidden):
                at = ends - step.shift - 1  # row t guesses token t + shift + 1
                valid, columns = at >= 0, at.clamp(min=0)
                weight = step.weight * self.student.token_weight
                states = _at(step.states, rows, columns)
                guesses.append(Guess(states, step.readout, valid, weight, step.target_ids))
                if step.regression is not None and self.student.feature_weight:
                    predicted, truth = (at_least_float32(_at(side, rows, columns)) for side in step.regression)
                    apart = F.smooth_l1_loss(predicted, truth, reduction="none").mean(-1)
                    distance = distance + step.weight * apart.masked_fill(~valid, 0).sum()
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            loss, sums = chunked_losses(
                self.objective,
                _at(final, rows, ends - 1),
                self._target_logits,
                token_ids[rows, ends],
                guesses,
                trained,
                self.chunk_rows,
            )
        self._sums = sums if self._sums is None else self._sums + sums
        count = len(ends) if num_predicted is None else num_predicted
        return (loss + self.student.feature_weight * distance) / count

    def _target_logits(self, states: Float[Tensor, "R H"]) -> Float[Tensor, "R V"]:
        """As decoding computes them, on the device of the states."""
        with torch.autocast(states.device.type, enabled=False):
            return self.target.readout(states).to(states.device)

    def take_sums(self) -> Float[Tensor, "K 4"]:
        """Of each of the K drafting steps, over the rows since the last call: their loss, sum min(p, q) at the objective's
        temperature, how many likeliest tokens agree with the target's, and how many rows."""
        taken, self._sums = self._sums, None
        return torch.zeros((0, 4), dtype=torch.float64) if taken is None else taken

    @contextmanager
    def as_decoded(self) -> Iterator[Student]:
        """The student as it decodes: in the precision it was loaded in, and not in training mode."""
        kept = [(parameter, parameter.data) for parameter in self.module.parameters()]
        was_training = self.module.training
        self.module.eval()
        for (parameter, weights), dtype in zip(kept, self._dtypes, strict=True):
            parameter.data = weights.to(dtype)
        try:
            yield self.student
        finally:
            for parameter, weights in kept:
                parameter.data = weights
            self.module.train(was_training)


def _autocasts(precision: str, target: CausalLM) -> bool:
    if precision not in PRECISIONS:
        raise ValueError(f"train.precision={precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
    is_half = target.dtype.itemsize < 4
    if precision == "float32" and is_half:
        raise ValueError(
            f"train.precision=float32 and a target in {str(target.dtype).removeprefix('torch.')}: its hidden states have no more "
            "than 16 bits; use train.precision=auto, or target.dtype=float32"
        )
    return precision == "bfloat16" or (precision == "auto" and is_half)


def _chunk_rows(target: CausalLM) -> int:
    """On a GPU, which wants large passes, as many as take a gigabyte."""
    if target.device.type == "cpu":
        return CHUNK_ROWS
    return max(CHUNK_ROWS, CHUNK_BYTES // (CHUNK_ARRAYS * 4 * target.vocab_size))


def _at(states: Float[Tensor, "B T H"], rows: Int[Tensor, " R"], columns: Int[Tensor, " R"]) -> Float[Tensor, "R H"]:
    return states.flatten(0, 1).index_select(0, rows * states.shape[1] + columns)
