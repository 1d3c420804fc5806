from typing import Any

import pytest
import torch
from tiny_models import build
from torch import nn
from transformers import PreTrainedModel

from specresearch.models import CausalLM
from specresearch.models.parameter_count import count_parameters


def plain_count(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("settings", [{"load_in_4bit": True}, {"load_in_8bit": True}])
def test_a_quantized_model_has_the_parameters_it_was_made_from(settings: dict[str, Any]) -> None:
    pytest.importorskip("bitsandbytes")
    plain, quantized = (
        CausalLM.from_pretrained(
            "zoo:tiny", device="cpu", quantization=quantization, self_test=False
        )
        for quantization in (None, settings)
    )
    assert plain.num_parameters == plain_count(plain.model)
    assert quantized.num_parameters == plain.num_parameters
    if "load_in_4bit" in settings:
        assert plain_count(quantized.model) < plain.num_parameters


class PackedIntoBuffers(nn.Module):
    """A linear layer as GPTQ and AWQ keep it: eight 4-bit weights in an int32, no parameter."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        shape = (linear.in_features // 8, linear.out_features)
        self.register_buffer("qweight", torch.zeros(shape, dtype=torch.int32))


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_weights_in_buffers_are_counted_and_tied_ones_once(kind: str) -> None:
    model = build(kind)
    expected = plain_count(model)
    assert count_parameters(model) == expected
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear and "lm_head" not in name:
            model.set_submodule(name, PackedIntoBuffers(layer))
    assert plain_count(model) < expected
    vars(model)["hf_quantizer"] = object()  # as loading a quantized model leaves it
    assert count_parameters(model) == expected
