"""What training takes of a device's memory: foretold before it starts, and the most that it took."""

import resource
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from specresearch.models.kv_cache import available_bytes
from specresearch.training.distillation import CHUNK_ARRAYS, Distillation

MOMENTS = 2  # that AdamW keeps of every weight
COPIES = 3  # of what the steps put out: as it is, the rows to be predicted, and their gradients


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes. weights: of target and student, which are there already. loss: logits of one chunk of rows and what becomes of them.
    activations: what the backward pass of one batch needs, and the target's states.

    Left out are the target's own activations, which live for a layer at a time, and the caches of decoding.
    """

    weights: int
    gradients: int
    optimizer: int
    loss: int
    activations: int

    @classmethod
    def of(
        cls, distillation: Distillation, batch_size: int = 1, num_tokens: int = 2
    ) -> "MemoryForecast":
        """For batches of `batch_size` examples of `num_tokens` tokens, the longest there are: one of them is run, then two."""
        trained = sum(weight.nbytes for weight in distillation.trained)
        there = {*distillation.module.parameters(), *distillation.target.model.parameters()}
        one = _activations(distillation, 1, num_tokens)
        further = _activations(distillation, 2, num_tokens) - one if batch_size > 1 else 0
        chunk = distillation.chunk_rows * distillation.target.vocab_size * 4
        return cls(
            sum(weight.nbytes for weight in there),
            trained,
            MOMENTS * trained,
            CHUNK_ARRAYS * chunk,
            one + (batch_size - 1) * further,
        )

    @property
    def to_come(self) -> int:
        return self.gradients + self.optimizer + self.loss + self.activations

    def check(self, device: torch.device) -> str:
        """A line for people. Raises MemoryError when that much is not free."""
        free = available_bytes(device)
        told = (
            f"memory, in GB: weights {_gb(self.weights)}; to come: gradients {_gb(self.gradients)}, optimiser "
            f"{_gb(self.optimizer)}, loss {_gb(self.loss)}, activations {_gb(self.activations)} at the longest; on the whole, "
            f"{_gb(self.to_come)} more than now; free {_gb(free)}"
        )
        if self.to_come > free:
            raise MemoryError(
                f"training does not fit. {told}; lower train.batch_size and raise train.accumulate by as much, lower "
                "corpus.max_len, train a smaller drafter, or use a smaller target"
            )
        return told


def _activations(distillation: Distillation, rows: int, num_tokens: int) -> int:
    """What a batch leaves for the backward pass, without the weights, though with copies of them in fewer bits."""
    student, target = distillation.student, distillation.target
    weights = {weight.untyped_storage().data_ptr() for weight in distillation.module.parameters()}
    saved: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    token_ids = torch.zeros((rows, num_tokens), dtype=torch.long, device=target.device)
    learns = [weight.requires_grad for weight in distillation.trained]
    student.begin(1.0)  # when all of it learns
    with torch.random.fork_rng(), distillation.autocast():
        with torch.no_grad():
            states = target.forward_whole(token_ids, distillation.layers).hidden
        hidden = [
            dict(zip(distillation.layers, states, strict=True))[k] for k in student.hidden_layers
        ]
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            steps = list(student.steps(token_ids, hidden))
    student.begin(0.0)
    for weight, does in zip(distillation.trained, learns, strict=True):
        weight.requires_grad_(does)
    return (
        sum(saved.values())
        + sum(state.nbytes for state in states)
        + COPIES * sum(s.states.nbytes for s in steps)
    )


def peak_bytes(device: torch.device) -> int:
    """The most that tensors took on a GPU; on a CPU, the most that this process took."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f}"
