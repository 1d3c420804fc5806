"""Packed layers compute the same as plain ones and follow changes of their weights."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from specresearch import CausalLM
from specresearch.models import loading
from specresearch.models.linear_kernels import ONEDNN, serves
from specresearch.models.packed import (
    SMALLEST_WEIGHT,
    PackedLinear,
    has_packed_layers,
    pack_linear_layers,
    unpack_linear_layers,
)

WIDE = SMALLEST_WEIGHT // 64

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")


def packed(dtype: torch.dtype = torch.float32, bias: bool = True) -> tuple[nn.Linear, nn.Module]:
    plain = nn.Linear(64, WIDE, bias=bias, dtype=dtype)
    model = nn.ModuleDict({"layer": plain})
    pack_linear_layers(model, True)
    return plain, model["layer"]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (3, 7, 64), (0, 64), (2, 0, 64)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_packed_layer_computes_the_same_product(
    dtype: torch.dtype, tolerance: float, shape: tuple[int, ...], bias: bool
) -> None:
    plain, layer = packed(dtype, bias)
    rows = torch.randn(shape, dtype=dtype)
    assert isinstance(layer, PackedLinear) == serves(ONEDNN, dtype)
    with torch.inference_mode():
        torch.testing.assert_close(layer(rows), plain(rows), rtol=tolerance, atol=tolerance)


def test_inputs_need_not_be_contiguous() -> None:
    plain, layer = packed()
    rows = torch.randn(5, 3, 64).transpose(0, 1)
    with torch.inference_mode():
        torch.testing.assert_close(layer(rows), plain(rows), rtol=1e-5, atol=1e-5)


def test_a_packed_layer_follows_a_trained_weight() -> None:
    plain, layer = packed()
    rows = torch.randn(3, 64)
    with torch.inference_mode():
        before = layer(rows)
    layer(rows).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    with torch.inference_mode():
        torch.testing.assert_close(layer(rows), plain(rows), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(layer(rows), before)


def test_a_packed_layer_follows_a_replaced_weight() -> None:
    """`module.to(dtype)` replaces it without changing the parameter's version."""
    _, layer = packed()
    rows = torch.randn(3, 64)
    with torch.inference_mode():
        before = layer(rows)
        layer.to(torch.bfloat16)
        torch.testing.assert_close(layer(rows.bfloat16()).float(), before, rtol=5e-2, atol=5e-2)


def test_a_copy_has_its_own_weights() -> None:
    plain, layer = packed()
    rows = torch.randn(3, 64)
    with torch.inference_mode():
        layer(rows)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
        assert not twin(rows).any()
        torch.testing.assert_close(layer(rows), plain(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_unpacking_keeps_parameters_and_hooks(bias: bool) -> None:
    plain, layer = packed(bias=bias)
    model = nn.ModuleDict({"layer": layer}).eval()
    calls: list[str] = []
    before = layer.register_forward_pre_hook(lambda *_: calls.append("before"))
    layer.register_forward_hook(lambda *_: calls.append("after"))
    assert has_packed_layers(model)
    unpack_linear_layers(model)
    assert not has_packed_layers(model)
    unpacked = model["layer"]
    assert type(unpacked) is nn.Linear
    assert not unpacked.training
    assert (unpacked.weight, unpacked.bias) == (plain.weight, plain.bias)
    rows = torch.randn(3, 64)
    with torch.inference_mode():
        assert torch.equal(unpacked(rows), plain(rows))
        before.remove()
        unpacked(rows)
    assert calls == ["before", "after", "after"]


def test_other_layers_are_not_packed() -> None:
    class Special(nn.Linear):
        pass

    hooked = nn.Linear(64, WIDE)
    hooked.register_forward_hook(lambda *_: None)
    model = nn.ModuleList(
        [Special(64, WIDE), hooked, nn.Linear(64, 64), nn.Linear(64, WIDE, dtype=torch.float64)]
    )
    assert pack_linear_layers(model, True) == 0
    assert not any(isinstance(layer, PackedLinear) for layer in model.modules())


def test_layers_are_packed_only_if_memory_is_ample(monkeypatch: pytest.MonkeyPatch) -> None:
    num_bytes = 64 * WIDE * 4
    for free, requested, expected in (
        (2 * num_bytes, None, num_bytes),
        (2 * num_bytes - 1, None, 0),
        (0, True, num_bytes),
    ):
        monkeypatch.setattr("specresearch.models.packed.available_bytes", lambda _, free=free: free)
        assert pack_linear_layers(nn.ModuleList([nn.Linear(64, WIDE)]), requested) == expected


def test_a_packed_model_keeps_its_logits_and_files(tmp_path: Path) -> None:
    target = CausalLM.from_pretrained("zoo:tiny", max_len=32, pack_weights=True)
    plain = CausalLM.from_pretrained("zoo:tiny", max_len=32, pack_weights=False)
    assert any(isinstance(layer, PackedLinear) for layer in target.model.modules())
    assert not any(isinstance(layer, PackedLinear) for layer in plain.model.modules())
    for model in (target, plain):
        model.allocate(1, 1)
    prompt = list(range(10, 30))
    logits = [model.extend((0,), [prompt]).logits for model in (target, plain)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-3)
    target.model.save_pretrained(tmp_path)
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    original = AutoModelForCausalLM.from_pretrained(
        loading.resolve("zoo:tiny"), dtype=torch.float32
    )
    for name, weight in original.state_dict().items():
        torch.testing.assert_close(reloaded.state_dict()[name], weight, rtol=0, atol=0)
