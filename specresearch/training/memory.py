"""What training takes of a device's memory: foretold before it starts, and the most that it took."""

import resource
import sys
from dataclasses import dataclass

import torch

from specresearch.models.kv_cache import available_bytes
from specresearch.training.distillation import CHUNK_ARRAYS, Distillation

MOMENTS = 2  # that AdamW keeps of every weight


@dataclass(frozen=True)
class MemoryForecast:
    """Bytes. weights: of target and student, which are there already. loss: logits of one chunk of rows and what becomes of them.

    Left out is what the length of the text decides: activations of both models, and caches for decoding.
    """

    weights: int
    gradients: int
    optimizer: int
    loss: int

    @classmethod
    def of(cls, distillation: Distillation) -> "MemoryForecast":
        trained = sum(weight.nbytes for weight in distillation.trained)
        there = {*distillation.module.parameters(), *distillation.target.model.parameters()}
        chunk = distillation.chunk_rows * distillation.target.vocab_size * 4
        return cls(sum(weight.nbytes for weight in there), trained, MOMENTS * trained, CHUNK_ARRAYS * chunk)

    @property
    def to_come(self) -> int:
        return self.gradients + self.optimizer + self.loss

    def check(self, device: torch.device) -> str:
        """A line for people. Raises MemoryError when that much is not free."""
        free = available_bytes(device)
        told = (
            f"memory, in GB: weights {_gb(self.weights)}; to come: gradients {_gb(self.gradients)}, optimiser "
            f"{_gb(self.optimizer)}, loss {_gb(self.loss)}, and activations; free {_gb(free)}"
        )
        if self.to_come > free:
            raise MemoryError(f"training does not fit. {told}; train a smaller drafter, or use a smaller target")
        return told


def peak_bytes(device: torch.device) -> int:
    """The most that tensors took on a GPU; on a CPU, the most that this process took."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f}"
