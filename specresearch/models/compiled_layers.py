"""A model's decoder layers, compiled one by one: small operations become few kernels.

The layers of a model share compiled code, whatever their number, unless their shapes or settings
differ. It is compiled for one row or several, and for one token or several: up to four times. So a
model of any depth compiles in the time of a few layers. Attention stays as it is
(`deferred_attention`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from specresearch.models.attention import slot_attention
from specresearch.models.deferred_attention import DeferredCache, DeferredPlan, attending
from specresearch.models.load_errors import first_line

RECOMPILE_LIMIT = 256  # counts the layers of all models together
CACHE_ARGUMENTS = ("cache", "past_key_values")
DEFERRED_CACHE, DEFERRED_PLAN = DeferredCache(), DeferredPlan()


class CompiledLayers:
    """The decoder layers of a model."""

    def __init__(self, model: nn.Module) -> None:
        layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        self.layers = [layer for layer in layers if "forward" not in vars(layer)]
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, RECOMPILE_LIMIT)

    @contextmanager
    def running(self) -> Iterator[None]:
        """In this block, the layers run compiled; outside they are what they were."""
        for layer in self.layers:
            layer.forward = partial(_run, layer)
        try:
            yield
        finally:
            for layer in self.layers:
                vars(layer).pop("forward", None)


@cache
def _compiled(layer_class: type[nn.Module]) -> Callable[..., Any]:
    return torch.compile(layer_class.forward, dynamic=True)


def _run(layer: nn.Module, *args: Any, **options: Any) -> Any:
    """Run a layer compiled, and its attention as the pass has planned it."""
    from torch._dynamo.exc import BackendCompilerFailed  # takes a second to load

    names = [name for name in CACHE_ARGUMENTS if name in options]
    if len(names) != 1 or "attention_plan" not in options:
        return type(layer).forward(layer, *args, **options)
    view, plan = options[names[0]], options["attention_plan"]

    def attend(query: Tensor, key: Tensor, value: Tensor, *settings: Any) -> Tensor:
        scaling, window, softcap, sinks = settings
        keys, values = view.update(key, value, _place_in_cache(layer))
        return slot_attention(
            layer,
            query,
            keys,
            values,
            None,
            attention_plan=plan,
            scaling=scaling,
            sliding_window=window,
            softcap=softcap,
            s_aux=sinks,
        )[0]

    deferred = {names[0]: DEFERRED_CACHE, "attention_plan": DEFERRED_PLAN}
    with attending(attend):
        try:
            return _compiled(type(layer))(layer, *args, **options | deferred)
        except BackendCompilerFailed as error:
            raise ValueError(
                f"the layers of {type(layer).__name__} cannot be compiled here "
                f"({first_line(error)}); set target.compile=false"
            ) from error


def _place_in_cache(layer: nn.Module) -> int:
    numbers = {getattr(part, "layer_idx", None) for part in layer.modules()}
    (place,) = [number for number in numbers if isinstance(number, int)]
    return place
