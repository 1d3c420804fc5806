"""The loss of a batch: a frozen target and a student over the same sequences, step by step."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from specresearch.models import CausalLM
from specresearch.models.hf_adapter import FINAL_NORM
from specresearch.models.packed import has_packed_layers
from specresearch.sampling import at_least_float32
from specresearch.training.chunks import Guess, chunked_losses
from specresearch.training.objectives import CHUNK_ROWS, Objective
from specresearch.training.students import Student

CHUNK_ARRAYS = 12  # of a chunk's logits in float32, at the most
CHUNK_BYTES = 1 << 30
CHOICE = "choice."
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
        assert not has_packed_layers(student.module), (
            "a student must not decode with copies of weights that learn"
        )
        self.autocasts = _autocasts(precision, target)
        self.student, self.target, self.objective = student, target, objective
        self.chunk_rows = chunk_rows or _chunk_rows(target)
        target.model.requires_grad_(False)
        self.module = student.module.requires_grad_(False)
        self.trained = student.trained
        self._dtypes = [parameter.dtype for parameter in self.trained]
        for parameter in self.trained:
            parameter.requires_grad_(True)
            if parameter.dtype.itemsize < 4:
                parameter.data = parameter.data.float()
        self._sums: dict[str, Tensor] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        """States of the target that the loss and the student read, each once, in the adapter's numbering."""
        return tuple(dict.fromkeys((FINAL_NORM, *self.student.hidden_layers)))

    def forward(
        self,
        token_ids: Int[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
        num_predicted: Tensor | int | None = None,
        states: Sequence[Float[Tensor, "B T _"]] | None = None,
    ) -> Float[Tensor, ""]:
        """num_predicted: tokens to be predicted in all batches of the optimiser step, over all devices; None: in this one.
        states: of the target at `layers`, where they are known already."""
        if states is None:
            with torch.no_grad():
                states = self.target.forward_whole(token_ids, self.layers).hidden
        known = dict(zip(self.layers, states, strict=True))
        final, hidden = known[FINAL_NORM], [known[k] for k in self.student.hidden_layers]

        rows, ends = loss_mask.nonzero(as_tuple=True)  # sync
        with self.autocast():
            guesses, names, distances, total_distance = (
                [],
                [],
                [],
                final.new_zeros((), dtype=torch.float32),
            )
            for step in self.student.steps(token_ids, hidden):
                at = ends - step.shift - 1  # row t guesses token t + shift + 1
                valid, columns = at >= step.first_row, at.clamp(min=0)
                weight = step.weight * self.student.token_weight
                drafted = _at(step.states, rows, columns)
                guesses.append(
                    Guess(
                        drafted, step.readout, valid, weight, step.target_ids, self.student.samples
                    )
                )
                names.append(step.name or f"step_{len(names)}")
                apart = final.new_zeros((), dtype=torch.float32)
                if step.regression is not None and self.student.feature_weight:
                    predicted, truth = (
                        at_least_float32(_at(side, rows, columns)) for side in step.regression
                    )
                    between = F.smooth_l1_loss(predicted, truth, reduction="none").mean(-1)
                    apart = between.masked_fill(~valid, 0).sum()
                distances.append(apart.detach())
                total_distance = total_distance + step.weight * apart
            learning = [parameter for parameter in self.trained if parameter.requires_grad]
            loss, sums = chunked_losses(
                self.objective,
                _at(final, rows, ends - 1),
                self._target_logits,
                token_ids[rows, ends],
                guesses,
                learning,
                self.chunk_rows,
            )
        for name, row, apart in zip(names, sums, distances, strict=True):
            self._sums[name] = torch.cat([row, apart[None].to(row)]) + self._sums.get(name, 0)
        count = len(ends) if num_predicted is None else num_predicted
        return (loss + self.student.feature_weight * total_distance) / count

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of the student's passes."""
        return torch.autocast(self.target.device.type, torch.bfloat16, enabled=self.autocasts)

    def _target_logits(self, states: Float[Tensor, "R H"]) -> Float[Tensor, "R V"]:
        """As decoding computes them, on the device of the states."""
        with torch.autocast(states.device.type, enabled=False):
            return self.target.readout(states).to(states.device)

    def take_sums(self) -> dict[str, Float[Tensor, "5"]]:
        """Of each drafting step by its name, over the rows since the last call: their loss, expected acceptance at the
        objective's temperature, how many likeliest tokens agree with the target's, how many rows, and the distance to the
        target's features."""
        taken, self._sums = self._sums, {}
        return taken

    @contextmanager
    def apart(self) -> Iterator[None]:
        """For passes that teach nothing: without gradients and dropout, and without a trace in `take_sums`."""
        kept, was_training = self._sums, self.module.training
        self._sums = {}
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._sums = kept
            self.module.train(was_training)

    def figures(self, sums: Mapping[str, Float[Tensor, "5"]]) -> dict[str, float]:
        """Means over the rows of what `take_sums` gave, by the name of the step."""
        values: dict[str, float] = {}
        for name, row in sums.items():
            loss, acceptance, agreeing, rows, distance = row.tolist()
            if rows:
                values[f"{name}/loss"] = loss / rows
                values[f"{name}/expected_acceptance"] = acceptance / rows
                values[f"{name}/greedy_agreement"] = agreeing / rows
                if self.student.feature_weight:
                    values[f"{name}/feature_distance"] = distance / rows
        return values

    @contextmanager
    def as_decoded(self) -> Iterator[Student]:
        """The student as it decodes and as it is saved: in the precision it was loaded in, adapters merged, and not in training
        mode. Caches that decoding fills are freed at the end."""
        was_training = self.module.training
        self.module.eval()
        try:
            with self.student.plain():
                kept = [(parameter, parameter.data) for parameter in self.trained]
                for (parameter, weights), dtype in zip(kept, self._dtypes, strict=True):
                    parameter.data = weights.to(dtype)
                try:
                    yield self.student
                finally:
                    for parameter, weights in kept:
                        parameter.data = weights
        finally:
            for model in (self.target, *self.student.decoders):
                model.free_cache()
            self.module.train(was_training)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds: the trained parameters by name, in the precision they are trained in, and what was chosen
        before."""
        trained = set(map(id, self.trained))
        weights = {
            name: weight for name, weight in self.module.named_parameters() if id(weight) in trained
        }
        chosen = {f"{CHOICE}{name}": value for name, value in self.student.choices.items()}
        return {name: value.detach().contiguous() for name, value in (weights | chosen).items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor], name: str) -> None:
        """Go on with what `state` gave. Raises ValueError for that of another drafter, calling it `name`."""
        own = self.state()
        shapes = [{key: list(value.shape) for key, value in side.items()} for side in (own, state)]
        for key in sorted(shapes[0].keys() | shapes[1].keys()):
            expected, found = (side.get(key, "nothing") for side in shapes)
            if expected != found:
                raise ValueError(
                    f"{name} is of another drafter: it holds {found} for {key}, and this one has {expected}; resume with the "
                    "settings of that run, or start a new one"
                )
        for key, weight in self.module.named_parameters():
            if key in own:
                weight.copy_(state[key])
        chosen = {
            key.removeprefix(CHOICE): value
            for key, value in state.items()
            if key.startswith(CHOICE)
        }
        self.student.choose(chosen)


def _autocasts(precision: str, target: CausalLM) -> bool:
    if precision not in PRECISIONS:
        raise ValueError(
            f"train.precision={precision!r} is unknown; choose one of {', '.join(PRECISIONS)}"
        )
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


def _at(
    states: Float[Tensor, "B T H"], rows: Int[Tensor, " R"], columns: Int[Tensor, " R"]
) -> Float[Tensor, "R H"]:
    return states.flatten(0, 1).index_select(0, rows * states.shape[1] + columns)
