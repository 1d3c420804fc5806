"""The loss of a batch: a frozen target and a student over the same sequences."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.packed import has_packed_layers
from specresearch.sampling import at_least_float32
from specresearch.training.chunked_loss import DraftRows, Peaks, chunked_losses
from specresearch.training.objectives import CHUNK_ROWS, Objective
from specresearch.training.students import Student, StudentStep

CHUNK_ARRAYS = 12  # of a chunk's logits in float32, at most
CHUNK_BYTES = 1 << 30
EXTRA_PREFIX = "choice."
PRECISIONS = ("auto", "float32", "bfloat16")

Totals = Float[Tensor, "5"]


class Distillation(nn.Module):
    """The training loss as a module: its forward pass returns the loss of a batch.

    The target runs in its decoding precision. A 16-bit student is trained in float32 and restored
    by `decoding_mode`.

    Args:
        precision: bfloat16 runs the student under autocast, float32 does not; auto does so if the
            target has 16 bits.
        chunk_rows: Rows whose logits exist at once; None chooses by memory.
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
        assert not has_packed_layers(student.module), "packed layers are copies and cannot train"
        self.autocasts = _autocasts(precision, target)
        self.student = student
        self.target = target
        self.objective = objective
        self.chunk_rows = chunk_rows or _chunk_rows(target)
        target.model.requires_grad_(False)
        self.module = student.module.requires_grad_(False)
        self.trained = student.trained
        self._dtypes = [parameter.dtype for parameter in self.trained]
        for parameter in self.trained:
            parameter.requires_grad_(True)
            if parameter.dtype.itemsize < 4:
                parameter.data = parameter.data.float()
        self._totals: dict[str, Totals] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        """The target layers that loss and student read, in the adapter's numbering."""
        return tuple(dict.fromkeys((FINAL_NORM, *self.student.hidden_layers)))

    def forward(
        self,
        token_ids: Int[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
        num_predicted: Tensor | int | None = None,
        states: Sequence[Float[Tensor, "B T _"]] | None = None,
        peaks: Mapping[str, Shaped[Tensor, "B T"]] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean loss of the tokens to be predicted.

        Args:
            num_predicted: Tokens to be predicted in all batches of the optimizer step, over all
                devices; None counts this batch.
            states: The target's states at `layers`, if cached.
            peaks: The fields of `Peaks` of its logits, if cached for a reduced vocabulary.
        """
        if states is None:
            with torch.no_grad():
                states = self.target.forward_whole(token_ids, self.layers).hidden
        by_layer = dict(zip(self.layers, states, strict=True))
        final = by_layer[FINAL_NORM]
        hidden = [by_layer[layer] for layer in self.student.hidden_layers]

        rows, ends = loss_mask.nonzero(as_tuple=True)  # sync
        drafts: list[DraftRows] = []
        distances: dict[str, Tensor] = {}
        weighted_distance = final.new_zeros((), dtype=torch.float32)
        with self.autocast():
            for step in self.student.steps(token_ids, hidden):
                columns = ends - step.shift - 1  # row t predicts token t + shift + 1
                valid = columns >= step.first_row
                columns = columns.clamp(min=0)
                drafts.append(
                    DraftRows(
                        states=_gather(step.states, rows, columns),
                        readout=step.readout,
                        valid=valid,
                        weight=step.weight * self.student.token_weight,
                        target_ids=step.target_ids,
                        samples=self.student.samples,
                    )
                )
                distance = self._feature_distance(step, rows, columns, valid)
                distances[step.name or f"step_{len(distances)}"] = distance.detach()
                weighted_distance = weighted_distance + step.weight * distance
            target_ids = known = None
            if peaks is not None:
                target_ids, known = self.student.target_ids, Peaks(**peaks)[rows, ends - 1]
            loss, totals = chunked_losses(
                self.objective,
                target_states=_gather(final, rows, ends - 1),
                target_readout=partial(self._target_logits, token_ids=target_ids),
                labels=token_ids[rows, ends],
                drafts=drafts,
                parameters=[weight for weight in self.trained if weight.requires_grad],
                chunk_rows=self.chunk_rows,
                peaks=known,
            )
        for (name, distance), total in zip(distances.items(), totals, strict=True):
            total = torch.cat([total, distance[None].to(total)])
            self._totals[name] = total + self._totals.get(name, 0)
        count = len(ends) if num_predicted is None else num_predicted
        return (loss + self.student.feature_weight * weighted_distance) / count

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision context of the student's passes."""
        return torch.autocast(self.target.device.type, torch.bfloat16, enabled=self.autocasts)

    def pop_totals(self) -> dict[str, Totals]:
        """Return the totals of each drafting step since the last call, and reset them.

        Totals are sums over rows: loss, expected acceptance at the objective's temperature, argmax
        tokens equal to the target's, row count, and distance to the target's features.
        """
        totals, self._totals = self._totals, {}
        return totals

    def metrics(self, totals: Mapping[str, Totals]) -> dict[str, float]:
        """Return the means of `pop_totals` by step."""
        values: dict[str, float] = {}
        for name, row in totals.items():
            loss, acceptance, agreement, num_rows, distance = row.tolist()
            if num_rows:
                values[f"{name}/loss"] = loss / num_rows
                values[f"{name}/expected_acceptance"] = acceptance / num_rows
                values[f"{name}/greedy_agreement"] = agreement / num_rows
                if self.student.feature_weight:
                    values[f"{name}/feature_distance"] = distance / num_rows
        return values

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Disable gradients and dropout, and keep `pop_totals` as it was."""
        saved_totals, was_training = self._totals, self.module.training
        self._totals = {}
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._totals = saved_totals
            self.module.train(was_training)

    @contextmanager
    def decoding_mode(self) -> Iterator[Student]:
        """Yield the student as it decodes and is saved; decoding caches are freed at the end.

        It is in evaluation mode, in the dtype it was loaded in, with adapters merged.
        """
        was_training = self.module.training
        self.module.eval()
        try:
            with self.student.merged():
                weights = [parameter.data for parameter in self.trained]
                for parameter, dtype in zip(self.trained, self._dtypes, strict=True):
                    parameter.data = parameter.data.to(dtype)
                try:
                    yield self.student
                finally:
                    for parameter, data in zip(self.trained, weights, strict=True):
                        parameter.data = data
        finally:
            for model in (self.target, *self.student.decoding_models):
                model.free_cache()
            self.module.train(was_training)

    def state(self) -> dict[str, Tensor]:
        """Return a checkpoint: trained parameters by name, and the student's extra state."""
        trained = set(map(id, self.trained))
        state: dict[str, Tensor] = {}
        for name, weight in self.module.named_parameters():
            if id(weight) in trained:
                state[name] = weight.detach().contiguous()
        for name, value in self.student.extra_state.items():
            state[f"{EXTRA_PREFIX}{name}"] = value.detach().contiguous()
        return state

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor], name: str) -> None:
        """Restore what `state` returned, unless the checkpoint `name` is another drafter's."""
        current = self.state()
        for key in sorted(current.keys() | state.keys()):
            expected = list(current[key].shape) if key in current else "nothing"
            stored = list(state[key].shape) if key in state else "nothing"
            if expected != stored:
                raise ValueError(
                    f"{name} is of another drafter: it holds {stored} for {key}, and this one has "
                    f"{expected}; resume with the settings of that run, or start a new one"
                )
        for key, weight in self.module.named_parameters():
            if key in current:
                weight.copy_(state[key])
        extra = {
            key.removeprefix(EXTRA_PREFIX): value
            for key, value in state.items()
            if key.startswith(EXTRA_PREFIX)
        }
        self.student.load_extra_state(extra)

    def _feature_distance(
        self,
        step: StudentStep,
        rows: Int[Tensor, " R"],
        columns: Int[Tensor, " R"],
        valid: Bool[Tensor, " R"],
    ) -> Float[Tensor, ""]:
        """Return the summed smooth L1 distance to the target's features, 0 without regression."""
        if step.regression is None or not self.student.feature_weight:
            return columns.new_zeros((), dtype=torch.float32)
        predicted, truth = (
            at_least_float32(_gather(side, rows, columns)) for side in step.regression
        )
        distances = F.smooth_l1_loss(predicted, truth, reduction="none").mean(-1)
        return distances.masked_fill(~valid, 0).sum()

    def _target_logits(
        self, states: Float[Tensor, "R H"], token_ids: Int[Tensor, " D"] | None
    ) -> Float[Tensor, "R V"] | Float[Tensor, "R D"]:
        """Compute logits in decoding precision, on the device of the states."""
        with torch.autocast(states.device.type, enabled=False):
            return self.target.readout(states, token_ids).to(states.device)


def _autocasts(precision: str, target: CausalLM) -> bool:
    if precision not in PRECISIONS:
        raise ValueError(
            f"train.precision={precision!r} is unknown; choose one of {', '.join(PRECISIONS)}"
        )
    is_half = target.dtype.itemsize < 4
    if precision == "float32" and is_half:
        dtype = str(target.dtype).removeprefix("torch.")
        raise ValueError(
            f"train.precision=float32 and a target in {dtype}: its hidden states have no more than "
            "16 bits; use train.precision=auto, or target.dtype=float32"
        )
    return precision == "bfloat16" or (precision == "auto" and is_half)


def _chunk_rows(target: CausalLM) -> int:
    """Fill a gigabyte on a GPU, which needs large passes."""
    if target.device.type == "cpu":
        return CHUNK_ROWS
    return max(CHUNK_ROWS, CHUNK_BYTES // (CHUNK_ARRAYS * 4 * target.vocab_size))


def _gather(
    states: Float[Tensor, "B T H"], rows: Int[Tensor, " R"], columns: Int[Tensor, " R"]
) -> Float[Tensor, "R H"]:
    return states.flatten(0, 1).index_select(0, rows * states.shape[1] + columns)
