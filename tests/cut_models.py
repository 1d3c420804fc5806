"""Models of the transformers library with four layers, whole or with sublayers cut out."""

import copy
from typing import Any

import torch
from tiny_models import build
from torch import nn
from transformers import PreTrainedModel

from specresearch.models.layer_view import Sublayers

LAYERS = 4
MIXED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
CHANGES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": LAYERS},
    "gptj": {"n_layer": LAYERS},
    "smollm3": {"no_rope_layers": [1, 0, 0, 1]},
    "smollm3_sliding": {"no_rope_layers": [1, 0, 0, 1], "layer_types": MIXED},
} | {name: {"layer_types": MIXED} for name in ("gemma3", "gpt_oss", "olmo3", "cohere2")}
SKIPPED = {
    "exit": Sublayers.behind(2, LAYERS),
    "inner_layer": Sublayers.of([1], [1]),
    "sublayers": Sublayers.of([0, 1, 3], [1, 2]),
}


def deep(architecture: str) -> PreTrainedModel:
    changes: dict[str, Any] = {"num_hidden_layers": LAYERS} | CHANGES.get(architecture, {})
    if "n_layer" in changes:
        del changes["num_hidden_layers"]
    return build(architecture, seed=3, **changes)


def cut(model: PreTrainedModel, skipped: Sublayers) -> PreTrainedModel:
    """Zero what the sublayers write to the residual stream, by hooks."""
    model = copy.deepcopy(model)
    stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    layers = next(stack for stack in stacks if len(stack) == LAYERS)

    def zero(_module: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    def unchanged(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        return (states, *output[1:]) if isinstance(output, tuple) else states

    for i, layer in enumerate(layers):
        if i in skipped.whole_layers:
            layer.register_forward_hook(unchanged, with_kwargs=True)
            continue
        for name, part in layer.named_children():
            is_attention = hasattr(part, "layer_idx")
            if (is_attention and i in skipped.attention) or (name == "mlp" and i in skipped.mlp):
                part.register_forward_hook(zero)
    return model
