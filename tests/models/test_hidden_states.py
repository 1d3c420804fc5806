"""Hidden states are taken from passes that leave every layer as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from tiny_models import VOCAB, build
from torch import nn

from specresearch import CausalLM

IDS = torch.tensor([[3, 1, 4, 1, 5]])


class Counter(ModelHook):
    """As accelerate moves inputs to the device of a layer: in place of the layer's `forward`."""

    def __init__(self) -> None:
        self.num_calls = 0

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.num_calls += 1
        return args, kwargs


def own_forward(model: CausalLM) -> list[Callable[..., Any] | None]:
    return [vars(layer).get("forward") for layer in model.adapter.layers]


@pytest.fixture
def model() -> CausalLM:
    return CausalLM(build("llama"), self_test=False)


def test_a_layer_taken_over_by_another_library_keeps_its_forward(model: CausalLM) -> None:
    with torch.inference_mode():
        expected = model.forward_whole(IDS, (0, 1), want_logits=True)
        counter, layer = Counter(), model.adapter.layers[1]
        add_hook_to_module(layer, counter)
        before = own_forward(model)
        output = model.forward_whole(IDS, (0, 1), want_logits=True)
    assert counter.num_calls == 1
    assert own_forward(model) == before
    assert before[1] is not None
    torch.testing.assert_close(output.logits, expected.logits)
    torch.testing.assert_close(output.hidden, expected.hidden)


def test_a_layer_asked_for_twice_is_released(model: CausalLM) -> None:
    with torch.inference_mode():
        first, again = model.forward_whole(IDS, (1, 1)).hidden
    assert torch.equal(first, again)
    assert own_forward(model) == [None] * len(model.adapter.layers)


def test_a_pass_that_fails_releases_its_layers(model: CausalLM) -> None:
    with pytest.raises(IndexError), torch.inference_mode():
        model.forward_whole(torch.tensor([[VOCAB]]), (0, 1))
    assert own_forward(model) == [None] * len(model.adapter.layers)
