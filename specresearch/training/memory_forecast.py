"""Device memory of training, estimated before it starts."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specresearch.models.kv_cache import available_bytes
from specresearch.models.memory import used_bytes
from specresearch.training.distillation import CHUNK_ARRAYS, Distillation

ADAM_MOMENTS = 2
SHORT_TEXTS = (64, 128, 192)  # tokens; three lengths determine a quadratic
STATE_COPIES = 3  # of each step's outputs: themselves, their rows with a loss, and the gradients


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes that training needs.

    Excluded are the target's activations, which live for one layer, and decoding caches.

    Attributes:
        in_use: What is allocated already: on a GPU all tensors, on a CPU the whole process, with
            the libraries that it loaded.
        weights: Weights of target and student, a part of `in_use`.
        loss: Logits of one chunk of rows, and arrays derived from them.
        activations: Tensors saved for the backward pass of a batch, and the target's states.
    """

    in_use: int
    weights: int
    gradients: int
    optimizer: int
    loss: int
    activations: int

    @classmethod
    def measure(
        cls, distillation: Distillation, batch_size: int = 1, num_tokens: int = 2
    ) -> "MemoryForecast":
        """Forecast the longest batches: `batch_size` examples of `num_tokens`."""
        trained = sum(weight.nbytes for weight in distillation.trained)
        weights = {*distillation.module.parameters(), *distillation.target.model.parameters()}
        chunk_bytes = distillation.chunk_rows * distillation.target.vocab_size * 4
        return cls(
            in_use=used_bytes(distillation.target.device),
            weights=sum(weight.nbytes for weight in weights),
            gradients=trained,
            optimizer=ADAM_MOMENTS * trained,
            loss=CHUNK_ARRAYS * chunk_bytes,
            activations=_activations(distillation, batch_size, num_tokens),
        )

    @property
    def additional(self) -> int:
        """Bytes needed on top of the weights."""
        return self.gradients + self.optimizer + self.loss + self.activations

    def check(self, device: torch.device) -> str:
        """Return a summary line, or raise MemoryError if less memory is free."""
        free = available_bytes(device)
        summary = (
            f"memory, in GB: in use {_gb(self.in_use)}, weights of {_gb(self.weights)} included; "
            f"in addition gradients {_gb(self.gradients)}, optimizer {_gb(self.optimizer)}, loss "
            f"{_gb(self.loss)}, activations up to {_gb(self.activations)}; peak up to "
            f"{_gb(self.in_use + self.additional)}; free {_gb(free)}"
        )
        if self.additional > free:
            raise MemoryError(
                f"training does not fit. {summary}; lower train.batch_size and raise "
                "train.accumulate by as much, lower corpus.max_len, train a smaller drafter, or "
                "use a smaller target"
            )
        return summary


def _activations(distillation: Distillation, batch_size: int, num_tokens: int) -> int:
    """Extrapolate what the longest batches save from short texts, which take little memory.

    A tensor grows linearly with the batch or not at all, and at most quadratically with the text.
    """
    lengths = SHORT_TEXTS if num_tokens > max(SHORT_TEXTS) else (num_tokens,)
    saved = []
    for size in (1, 2):
        measured = [_saved_bytes(distillation, size, length) for length in lengths]
        curve = np.polyfit(lengths, measured, len(lengths) - 1)
        saved.append(float(np.polyval(curve, num_tokens)))
    return round(saved[0] + (batch_size - 1) * (saved[1] - saved[0]))


def _saved_bytes(distillation: Distillation, batch_size: int, num_tokens: int) -> int:
    """Return the bytes a batch saves for backward, without weights but with their cast copies."""
    student, target = distillation.student, distillation.target
    weights = {weight.untyped_storage().data_ptr() for weight in distillation.module.parameters()}
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    token_ids = torch.zeros((batch_size, num_tokens), dtype=torch.long, device=target.device)
    requires_grad = [weight.requires_grad for weight in distillation.trained]
    student.start_step(1.0)  # the last stage, when everything trains
    with torch.random.fork_rng(), distillation.autocast():
        with torch.no_grad():
            states = target.forward_whole(token_ids, distillation.layers).hidden
        by_layer = dict(zip(distillation.layers, states, strict=True))
        hidden = [by_layer[layer] for layer in student.hidden_layers]
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            steps = list(student.steps(token_ids, hidden))
    student.start_step(0.0)
    for weight, needs_grad in zip(distillation.trained, requires_grad, strict=True):
        weight.requires_grad_(needs_grad)
    target_bytes = sum(state.nbytes for state in states)
    step_bytes = sum(step.states.nbytes for step in steps)
    return sum(saved.values()) + target_bytes + STATE_COPIES * step_bytes


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f}"
