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
    split_projections,
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
    before = [weight.data_ptr() for weight in model.parameters()]
    assert join_projections(model) == 2
    assert [weight.data_ptr() for weight in model.parameters()] == before  # nothing was copied
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


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_step_of_an_optimizer_reaches_the_joint_product(architecture: str) -> None:
    """Also of one that was made before."""
    model: Any = build(architecture)
    alone = copy.deepcopy(model)
    own = list(model.parameters())
    optimizers = [torch.optim.SGD(network.parameters(), 0.1) for network in (model, alone)]
    join_projections(model)
    assert all(a is b for a, b in zip(own, model.parameters(), strict=True))
    for network, optimizer in zip((model, alone), optimizers, strict=True):
        logits(network).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(alone.state_dict()))
    with torch.no_grad():
        torch.testing.assert_close(logits(model), logits(alone))
    saved = {name: tensor + 0.1 for name, tensor in alone.state_dict().items()}
    for network in (model, alone):
        network.load_state_dict(saved)
    with torch.no_grad():
        torch.testing.assert_close(logits(model), logits(alone))


def test_a_converted_model_multiplies_by_its_own_weights() -> None:
    model: Any = build("qwen2")
    join_projections(model)
    model.float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        found = logits(model)
        torch.testing.assert_close(found, logits(model))
        assert model.model.layers[0].self_attn.q_proj.product is None
        join_projections(model)
        assert model.model.layers[0].self_attn.q_proj.product is not None
        torch.testing.assert_close(found, logits(model))


def test_split_layers_can_be_trained_and_saved(tmp_path: Path) -> None:
    model: Any = build("llama")
    join_projections(model)
    split_projections(model)
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


def test_models_that_share_weights_share_the_joint_ones() -> None:
    model: Any = build("qwen2")
    copies = []
    for _ in range(2):
        copied: Any = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
        join_projections(copied)
        copies.append(copied)
    again: Any = copy.deepcopy(copies[0], {id(weight): weight for weight in copies[0].parameters()})
    assert not any(isinstance(module, JointLinear) for module in again.modules())
    join_projections(again)
    joined = [network.model.layers[0].self_attn.q_proj for network in (*copies, again)]
    assert len({layer.product.weight.data_ptr() for layer in joined}) == 1
    assert len({layer.product.bias.data_ptr() for layer in joined}) == 1
    assert len({id(layer.product) for layer in joined}) == 3


def test_a_copy_of_its_own_follows_its_own_weights() -> None:
    model: Any = build("qwen2")
    join_projections(model)
    expected = logits(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        torch.testing.assert_close(logits(copied), expected)
        for parameter in copied.parameters():
            parameter.mul_(1.5)
        found = logits(copied)
    torch.testing.assert_close(found, logits(copied))


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
        network: Any = build()
        lm = CausalLM(network.to(DEVICE))
        assert number_joined(lm.model) == 2 * 3
        lm.unpack_weights()
        assert number_joined(lm.model) == 0
