"""What a model takes, from its configuration alone: it is built without memory and counted."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from specresearch.models.hf_adapter import check_model
from specresearch.models.load_errors import ModelNotLoadedError, first_line
from specresearch.planning.kv_size import KVLayer, kv_layers
from specresearch.planning.precision import Precision, stored_precision

_EXPERT = re.compile(r"(^|\.)experts\.")
_BILLIONS = re.compile(r"(\d+(?:\.\d+)?)b\b", re.IGNORECASE)
NOMINAL_ERROR = 0.1  # of a size in a name, before it counts as something else


@dataclass(frozen=True)
class ModelSize:
    """The numbers of a model or head that memory and time depend on.

    Attributes:
        num_parameters: All of them, tied ones once.
        num_linear: Weights of linear layers, the LM head excluded: what quantisation packs.
        num_experts: Those of `num_linear` in routed experts.
        share_of_experts: Of the experts, those that a token goes through; 1 without experts.
        intermediate: Widest MLP that a token goes through.
        num_heads: Query heads, which GPUs divide among themselves; 0 without attention.
        kv: What each layer caches.
        stored: How the checkpoint's weights are quantised, by its config; None if they are not.
    """

    name: str
    num_parameters: int
    num_linear: int
    hidden: int
    vocab_size: int
    intermediate: int = 0
    num_heads: int = 0
    kv: tuple[KVLayer, ...] = ()
    num_experts: int = 0
    share_of_experts: float = 1.0
    stored: Precision | None = None

    @property
    def num_active(self) -> int:
        """Parameters that a token goes through."""
        return self.num_parameters - round(self.num_experts * (1 - self.share_of_experts))

    @property
    def num_nominal(self) -> float:
        """Parameters as the name gives them, or as counted if it does not."""
        for billions in _BILLIONS.findall(self.name):
            nominal = float(billions) * 1e9
            if abs(nominal - self.num_parameters) <= NOMINAL_ERROR * self.num_parameters:
                return nominal
        return float(self.num_parameters)

    def weight_bytes(self, precision: Precision) -> float:
        num_quantised = self.num_experts if precision.only_experts else self.num_linear
        rest = (self.num_parameters - num_quantised) * precision.rest
        return num_quantised * precision.bits / 8 + rest

    def nominal_bytes(self, precision: Precision) -> float:
        """Return bytes by the rule of thumb: the size in the name times the bits of a weight."""
        return self.num_nominal * precision.nominal_bits / 8

    def read_bytes(self, precision: Precision, num_tokens: int) -> float:
        """Return the bytes of weights that a pass over so many tokens reads.

        Each token is routed independently and uniformly, so experts that several share are read
        once.
        """
        share_read = 1 - (1 - self.share_of_experts) ** num_tokens
        unread = self.num_experts * (1 - share_read)
        return self.weight_bytes(precision) - unread * precision.bits / 8

    def check_gpus(self, num_gpus: int) -> None:
        """Raise ValueError if so many GPUs cannot share the attention heads."""
        if self.num_heads % num_gpus == 0:
            return
        divisors = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0 and n <= 64]
        raise ValueError(
            f"{num_gpus} GPUs cannot divide the {self.num_heads} attention heads of {self.name}; "
            f"use {', '.join(map(str, divisors))}"
        )


def causal_lm_size(name: str, config: PreTrainedConfig) -> ModelSize:
    """Count a causal LM by its configuration.

    Raises:
        ModelNotLoadedError: If the transformers library cannot build it.
        ValueError: If its cache or its quantisation is not known here.
    """
    quantization: Any = getattr(config, "quantization_config", None)
    model = _without_memory(name, config)
    text: Any = config.get_text_config(decoder=True)
    head, embedding = model.get_output_embeddings(), cast(Any, model.get_input_embeddings())
    linear: dict[int, Tensor] = {}
    experts: dict[int, Tensor] = {}
    for part in model.modules():
        if isinstance(part, (nn.Linear, Conv1D)) and part is not head:
            linear[id(part.weight)] = part.weight
    for key, parameter in model.named_parameters():
        if _EXPERT.search(key) and parameter.dim() >= 2 and not key.endswith("bias"):
            experts[id(parameter)] = parameter
    num_experts = sum(weight.numel() for weight in experts.values())
    return ModelSize(
        name=name,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_linear=sum(weight.numel() for weight in (linear | experts).values()),
        hidden=text.hidden_size,
        vocab_size=embedding.weight.shape[0],
        intermediate=_intermediate(text),
        num_heads=text.num_attention_heads,
        kv=kv_layers(config, check_model(model)),
        num_experts=num_experts,
        share_of_experts=_share_of_experts(text) if num_experts else 1.0,
        stored=stored_precision(quantization),
    )


def count_shapes(shapes: dict[str, list[int]]) -> tuple[int, int]:
    """Return the parameters of a head's tensors, and those of them in linear layers."""
    sizes = {key: prod(shape) for key, shape in shapes.items() if key not in ("d2t", "t2d")}
    linear = [
        size
        for key, size in sizes.items()
        if len(shapes[key]) == 2 and not key.startswith(("embed_tokens.", "lm_head."))
    ]
    return sum(sizes.values()), sum(linear)


def _without_memory(name: str, config: PreTrainedConfig) -> PreTrainedModel:
    build: Any = AutoModelForCausalLM.from_config
    try:
        with torch.device("meta"), _quiet():
            model = build(config)
        model.tie_weights()
    except (ValueError, TypeError, AttributeError, ZeroDivisionError, RuntimeError) as error:
        raise ModelNotLoadedError(
            f"no causal LM can be built from the config of {name!r}: {first_line(error)}; correct "
            "its config.json"
        ) from error
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what importing optional kernels logs."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous)


def _share_of_experts(text: Any) -> float:
    total = next(
        getattr(text, key)
        for key in ("n_routed_experts", "num_local_experts", "num_experts")
        if getattr(text, key, None)
    )
    used = getattr(text, "num_experts_per_tok", None) or total
    return used / total


def _intermediate(text: Any) -> int:
    """Return the widest MLP of a token: a dense layer's, or all of its experts together."""
    dense = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    width = getattr(text, "moe_intermediate_size", None)
    if width is None:
        return dense
    used = (text.num_experts_per_tok or 1) + (getattr(text, "n_shared_experts", None) or 0)
    return max(dense, used * width)
