"""Device memory of training, estimated before it starts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specresearch.models.kv_cache import available_bytes
from specresearch.training.distillation import CHUNK_ARRAYS, Distillation

ADAM_MOMENTS = 2
STATE_COPIES = 3  # of each step's outputs: themselves, their rows with a loss, and the gradients


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes that training needs.

    Excluded are the target's activations, which live for one layer, and decoding caches.

    Attributes:
        weights: Weights of target and student, already allocated.
        loss: Logits of one chunk of rows, and arrays derived from them.
        activations: Tensors saved for the backward pass of a batch, and the target's states.
    """

    weights: int
    gradients: int
    optimizer: int
    loss: int
    activations: int

    @classmethod
    def measure(
        cls, distillation: Distillation, batch_size: int = 1, num_tokens: int = 2
    ) -> "MemoryForecast":
        """Extrapolate from a forward pass of one example, and one of two, of `num_tokens`."""
        trained = sum(weight.nbytes for weight in distillation.trained)
        weights = {*distillation.module.parameters(), *distillation.target.model.parameters()}
        activations = _activations(distillation, 1, num_tokens)
        if batch_size > 1:
            per_example = _activations(distillation, 2, num_tokens) - activations
            activations += (batch_size - 1) * per_example
        chunk_bytes = distillation.chunk_rows * distillation.target.vocab_size * 4
        return cls(
            weights=sum(weight.nbytes for weight in weights),
            gradients=trained,
            optimizer=ADAM_MOMENTS * trained,
            loss=CHUNK_ARRAYS * chunk_bytes,
            activations=activations,
        )

    @property
    def additional(self) -> int:
        """Bytes needed on top of the weights."""
        return self.gradients + self.optimizer + self.loss + self.activations

    def check(self, device: torch.device) -> str:
        """Return a summary line, or raise MemoryError if less memory is free."""
        free = available_bytes(device)
        summary = (
            f"memory, in GB: weights {_gb(self.weights)}; in addition gradients "
            f"{_gb(self.gradients)}, optimiser {_gb(self.optimizer)}, loss {_gb(self.loss)}, "
            f"activations up to {_gb(self.activations)}, {_gb(self.additional)} in total; "
            f"free {_gb(free)}"
        )
        if self.additional > free:
            raise MemoryError(
                f"training does not fit. {summary}; lower train.batch_size and raise "
                "train.accumulate by as much, lower corpus.max_len, train a smaller drafter, or "
                "use a smaller target"
            )
        return summary


def _activations(distillation: Distillation, batch_size: int, num_tokens: int) -> int:
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
