"""Fused norms compute what they replace, and whatever computes something else stays."""

import copy
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from tiny_models import build
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specresearch.mock_cuda import DEVICE, MockCuda
from specresearch.models import CausalLM
from specresearch.models.fused_norms import FusedNorm, fuse_norms


def with_weights(norm: Any, dtype: torch.dtype | None = None) -> nn.Module:
    nn.init.normal_(norm.weight)
    return nn.ModuleDict({"norm": norm.to(dtype)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_of_the_library_computes_the_same(dtype: torch.dtype) -> None:
    model: Any = with_weights(LlamaRMSNorm(48, 1e-5), dtype)
    own = model["norm"]
    assert fuse_norms(model) == 1
    assert isinstance(model["norm"], FusedNorm)
    assert model["norm"].weight is own.weight
    assert list(model.state_dict()) == ["norm.weight"]
    for scale in (1e-3, 1.0, 100.0):
        states = scale * torch.randn(2, 3, 48).to(dtype)
        torch.testing.assert_close(model["norm"](states), own(states))
    assert fuse_norms(model) == 0


class ShiftedNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


class OtherEpsilonNorm(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        states = hidden_states.float()
        variance = states.pow(2).mean(-1, keepdim=True)
        return self.weight * states / (variance.sqrt() + self.variance_epsilon)


def hooked() -> nn.Module:
    norm = LlamaRMSNorm(48)
    norm.register_forward_hook(lambda *_: None)
    return norm


def moved_by_accelerate() -> nn.Module:
    norm = LlamaRMSNorm(48)
    add_hook_to_module(norm, AlignDevicesHook("cpu", io_same_device=True))
    return norm


@pytest.mark.parametrize(
    "norm",
    [
        GemmaRMSNorm(48),  # 1 + weight
        ShiftedNorm(48),
        OtherEpsilonNorm(48, 1e-2),
        nn.LayerNorm(48),
        nn.LayerNorm(48, bias=False),
        hooked(),
        moved_by_accelerate(),
        LlamaRMSNorm(48).to("meta"),
        LlamaRMSNorm(48).double(),  # which the library computes in float32
    ],
    ids=["one more", "shifted", "epsilon", "bias", "mean", "hook", "moved", "meta", "float64"],
)
def test_others_stay(norm: nn.Module) -> None:
    model: Any = with_weights(norm)
    assert fuse_norms(model) == 0
    assert model["norm"] is norm


def test_a_model_on_a_gpu_has_fused_norms() -> None:
    model: Any = build("llama", seed=1, dtype=torch.float32)
    plain = CausalLM(copy.deepcopy(model))
    with MockCuda():
        on_device = CausalLM(model.to(DEVICE))
        kinds = [type(m).__name__ for m in on_device.model.modules() if "Norm" in type(m).__name__]
        assert set(kinds) == {"FusedNorm"}
        logits = on_device.forward_whole(torch.tensor([[1, 2, 3]]).to(DEVICE), want_logits=True)
        found = logits.logits.cpu()
    expected = plain.forward_whole(torch.tensor([[1, 2, 3]]), want_logits=True).logits
    torch.testing.assert_close(found, expected)
    assert not any(isinstance(module, FusedNorm) for module in plain.model.modules())
