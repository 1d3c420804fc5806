"""Joint projections compute what the layers compute alone, and undo without a trace."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from shape_checks import unchecked
from tiny_models import build
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from specresearch.mock_cuda import DEVICE, MockCuda
from specresearch.models import CausalLM
from specresearch.models.joint_projections import (
    JointLinear,
    join_projections,
    part_projections,
)

TOKENS = torch.tensor([[5, 1, 2, 3], [3, 1, 4, 1]])


def logits(model: Any) -> Tensor:
    return model(TOKENS).logits


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])  # qwen2 has biases
def test_outputs_are_the_same(architecture: str) -> None:
    model: Any = build(architecture)
    expected = logits(model)
    names = list(model.state_dict())
    assert join_projections(model) == 2  # layers
    assert join_projections(model) == 0
    assert list(model.state_dict()) == names
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(logits(model), expected)


def test_one_product_serves_three_layers() -> None:
    model: Any = build("llama")
    join_projections(model)
    attention = model.model.layers[0].self_attn
    product = attention.q_proj.product
    assert product is attention.k_proj.product is attention.v_proj.product
    states = torch.randn(2, 16, dtype=torch.float64)
    with torch.no_grad():
        query, key = attention.q_proj(states), attention.k_proj(states)
        assert query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
        value = attention.v_proj(states)
    assert product._input is None
    assert product._products == ()
    for name, found in (("q_proj", query), ("k_proj", key), ("v_proj", value)):
        torch.testing.assert_close(found, states @ getattr(attention, name).weight.T)


def test_another_input_is_not_taken_for_the_last_one() -> None:
    model: Any = build("llama")
    join_projections(model)
    attention = model.model.layers[0].self_attn
    first, second = torch.randn(2, 3, 16, dtype=torch.float64)
    with torch.no_grad():
        attention.q_proj(first)
        torch.testing.assert_close(attention.k_proj(second), second @ attention.k_proj.weight.T)


def test_gradients_reach_every_weight() -> None:
    model: Any = build("llama")
    expected = copy.deepcopy(model)
    join_projections(model)
    for network in (model, expected):
        logits(network).square().sum().backward()
    for found, own in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.grad, own.grad)


def test_parted_layers_can_be_trained_and_saved(tmp_path: Path) -> None:
    model: Any = build("llama")
    join_projections(model)
    part_projections(model)
    assert not any(isinstance(module, JointLinear) for module in model.modules())
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        attention.k_proj.weight.mul_(2)
    expected = logits(model)
    save_file(model.state_dict(), tmp_path / "tensors.safetensors")
    saved = load_file(tmp_path / "tensors.safetensors")
    torch.testing.assert_close(saved, dict(model.state_dict()))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(logits(loaded), expected)


def test_a_copy_that_shares_weights_shares_the_joint_one() -> None:
    model: Any = build("llama")
    join_projections(model)
    tensors = (*model.parameters(), *model.buffers())
    shared = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    part_projections(shared)
    assert join_projections(shared) == 2
    for own, other in zip(model.modules(), shared.modules(), strict=True):
        if isinstance(own, JointLinear):
            assert isinstance(other, JointLinear)
            assert other.product is not own.product
            assert other.product.weight.data_ptr() == own.product.weight.data_ptr()


def test_a_copy_of_its_own_keeps_its_values() -> None:
    model: Any = build("llama")
    join_projections(model)
    expected = logits(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        torch.testing.assert_close(logits(copied), expected)


def changed(**changes: Any) -> nn.Module:
    attention = copy.deepcopy(build("llama").get_submodule("model.layers.0.self_attn"))
    for name, layer in changes.items():
        setattr(attention, name, layer)
    return attention


def hooked() -> nn.Module:
    attention = changed()
    attention.get_submodule("k_proj").register_forward_hook(lambda *_: None)
    return attention


class OwnLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    "attention",
    [
        hooked(),
        changed(v_proj=OwnLinear(16, 8, bias=False, dtype=torch.float64)),
        changed(k_proj=nn.Linear(16, 8, dtype=torch.float64)),
        changed(k_proj=nn.Linear(16, 8, bias=False)),
        changed(q_proj=nn.Linear(16, 16, bias=False, device="meta", dtype=torch.float64)),
    ],
    ids=["hook", "class", "bias", "precision", "meta"],
)
def test_others_stay(attention: nn.Module) -> None:
    before = list(attention.children())
    assert join_projections(attention) == 0
    assert list(attention.children()) == before


def number_joined(model: nn.Module) -> int:
    return sum(isinstance(part, JointLinear) for part in model.modules())


def test_models_on_a_gpu_have_them_until_they_are_trained() -> None:
    assert number_joined(CausalLM(build()).model) == 0
    with MockCuda(), unchecked():
        lm = CausalLM(build().to(DEVICE))
        assert number_joined(lm.model) == 2 * 3
        lm.unpack_weights()
        assert number_joined(lm.model) == 0
