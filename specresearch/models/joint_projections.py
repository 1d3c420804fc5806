"""Queries, keys and values by one matrix product on a GPU, where the library needs three.

Over few tokens, a product takes the time in which its weights are read, but for small ones, which
leave most of the device idle: with heads shared by queries, keys and values are small.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from specresearch.models.quantizer import is_quantized

NAMES = ("q_proj", "k_proj", "v_proj")


class _JointProduct(nn.Module):
    """Multiplies by the weights of several layers, and keeps the products until all are taken.

    Args:
        layers: They read the same input, in this order.
    """

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, " O"] | None

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.register_buffer("weight", _joint([layer.weight for layer in layers]), persistent=False)
        self.register_buffer("bias", torch.cat(biases) if biases else None, False)
        self.sizes = [layer.out_features for layer in layers]
        self._input: Tensor | None = None
        self._products: tuple[Tensor, ...] = ()

    def take(self, number: int, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows _"]:
        """Return the product of one layer."""
        if self._input is not input:
            self._input = input
            self._products = F.linear(input, self.weight, self.bias).split(self.sizes, dim=-1)
        product = self._products[number]
        if number == len(self.sizes) - 1:
            self._input, self._products = None, ()
        return product

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_input": None, "_products": ()}


class JointLinear(nn.Linear):
    """A linear layer whose product is computed with those of others, unless gradients are enabled.

    The weight must not be replaced: see `part_projections`.

    Args:
        number: Its place among the layers of the product.
    """

    def __init__(self, linear: nn.Linear, product: _JointProduct, number: int) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        part = product.weight.split(product.sizes)[number]
        self.weight = nn.Parameter(part, requires_grad=linear.weight.requires_grad)
        self.bias = linear.bias
        self.train(linear.training)
        self.product, self.number = product, number

    def forward(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        if torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        return self.product.take(self.number, input)

    def parted(self) -> nn.Linear:
        """Return a plain layer with the same parameters."""
        plain = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        plain.weight, plain.bias = self.weight, self.bias
        return plain.train(self.training)


def join_projections(model: nn.Module) -> int:
    """Let the projections of every attention be one product; return the number of products.

    Layers of other classes (quantized or adapted ones) and layers with hooks stay.
    """
    num_joined = 0
    for attention in list(model.modules()):
        layers = [getattr(attention, name, None) for name in NAMES]
        if not _can_join(layers):
            continue
        product = _JointProduct(layers)
        for number, (name, layer) in enumerate(zip(NAMES, layers, strict=True)):
            setattr(attention, name, JointLinear(layer, product, number))
        num_joined += 1
    return num_joined


def part_projections(model: nn.Module) -> None:
    """Undo `join_projections`, so that the model can be trained."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, JointLinear):
            model.set_submodule(name, layer.parted())


def _can_join(layers: Sequence[Any]) -> TypeGuard[Sequence[nn.Linear]]:
    if not all(type(layer) is nn.Linear and _is_plain(layer) for layer in layers):
        return False
    kinds = {
        (layer.in_features, layer.weight.dtype, layer.weight.device, layer.bias is None)
        for layer in layers
    }
    return len(kinds) == 1


def _is_plain(layer: nn.Linear) -> bool:
    is_hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return not is_hooked and not is_quantized(layer) and not layer.weight.is_meta


def _joint(weights: Sequence[Tensor]) -> Float[Tensor, "O I"]:
    """Return weights one below the other, which copies nothing if they lie so in memory."""
    first, total = weights[0].detach(), sum(map(len, weights))
    end = first.data_ptr()
    for weight in weights:
        lies_next = weight.is_contiguous() and weight.data_ptr() == end != 0
        if (
            not lies_next
            or weight.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        ):
            return torch.cat([weight.detach() for weight in weights])
        end += weight.nbytes
    return first.as_strided((total, first.shape[1]), first.stride())
