"""What the parts share: the device, the sizes, the target's weights, and the time that is left."""

import copy
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel

from specresearch.device_bench.device import Device, seconds
from specresearch.device_bench.measurement import Measurement
from specresearch.device_bench.scale import Scale, Variant
from specresearch.models import CausalLM
from specresearch.models.eagle_head import EagleHead
from specresearch.models.random_weights import random_model, shape_file

NUM_COPIES = 20


@dataclass(frozen=True)
class BenchCase:
    """Something that is measured or fails on its own."""

    name: str
    measure: Callable[[], Iterator[Measurement]]


@dataclass
class Bench:
    """The subject of all parts.

    Attributes:
        deadline: When the current case should end, on `time.monotonic`.
        profiles: Profiling that the current case defers to the end of the run: from then on, the
            process launches CUDA graphs more slowly.
    """

    device: Device
    scale: Scale
    deadline: float = field(default=float("inf"))
    profiles: list[Callable[[], Iterable[Measurement]]] = field(default_factory=list)

    @property
    def options(self) -> Mapping[str, Any]:
        """How models are run where only one way is looked at."""
        return self.scale.variants[0].options

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self.deadline

    @cached_property
    def weights(self) -> PreTrainedModel:
        """The target's shape with random weights. Decoding uses copies that share them."""
        return self.build(self.scale.target, self.scale.dtype)

    @cached_property
    def draft_weights(self) -> PreTrainedModel:
        return self.build(self.scale.draft, self.scale.dtype)

    def clean_up(self) -> None:
        """Free the memory of a case that is over."""
        gc.collect()
        self.device.release()

    @cached_property
    def head(self) -> EagleHead:
        return EagleHead.from_pretrained(self.scale.head, weights="random")

    @property
    def loaded(self) -> list[torch.nn.Module]:
        """Return the weights that are in memory, whoever uses them."""
        names = ("weights", "draft_weights", "head")
        return [vars(self)[name] for name in names if name in vars(self)]

    @cached_property
    def bandwidths(self) -> list[float]:
        """Bytes per second of a large copy on the device, read and written, by repeat."""
        source = torch.empty(self.scale.copy_bytes, dtype=torch.uint8, device=self.device.device)
        target = torch.empty_like(source)
        seconds(self.device, lambda: target.copy_(source), NUM_COPIES)
        return [
            2 * source.numel() / seconds(self.device, lambda: target.copy_(source), NUM_COPIES)
            for _ in range(self.scale.repeats)
        ]

    @property
    def bandwidth(self) -> float:
        return sorted(self.bandwidths)[len(self.bandwidths) // 2]

    def build(
        self,
        shape: str,
        dtype: torch.dtype,
        device: torch.device | None = None,
        **changed: Any,
    ) -> PreTrainedModel:
        """Return a model of a shape with random weights.

        Args:
            changed: Keys of its configuration, such as `num_hidden_layers`.
        """
        config = AutoConfig.from_pretrained(shape_file(shape))
        for key, value in changed.items():
            setattr(config, key, value)
        return random_model(config, dtype, {"device_map": device or self.device.device})

    def few_layers(self, dtype: torch.dtype) -> PreTrainedModel:
        """Return the target's shape with a few layers and a small vocabulary."""
        return self.build(
            self.scale.target,
            dtype,
            num_hidden_layers=self.scale.num_layers,
            vocab_size=self.scale.vocab_size,
        )

    def draft(self, variant: Variant) -> CausalLM:
        return CausalLM(sharing_weights(self.draft_weights), self_test=False, **variant.options)


class UnreadPrompts(CausalLM):
    """Decodes after prompts that it does not read: their columns hold whatever the cache holds.

    What a step costs does not depend on these values, so no prefill of long contexts is needed.
    """

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        self._reads = True  # the passes that show the shapes of the layers
        super().__init__(model, **options)
        self._reads = False

    def extend(self, slots: Any, tokens: Any, **options: Any) -> Any:
        if self._reads or options.get("want_logits", True):
            return super().extend(slots, tokens, **options)
        output = super().extend(slots, [[] for _ in tokens], **options)
        for slot, row in zip(slots, tokens, strict=True):
            self.lengths[slot] += len(row)
        return output


def sharing_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy that other code may patch, with the very tensors of the original."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def weights_read(model: PreTrainedModel) -> int:
    """Return the bytes of weights that a pass reads; an embedding is only looked up."""
    num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    embedding: Any = model.get_input_embeddings().weight
    head: Any = model.get_output_embeddings()
    if head.weight is embedding:
        return num_bytes
    return num_bytes - embedding.numel() * embedding.element_size()
