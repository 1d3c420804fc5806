"""Queries, keys and values by one matrix product on a GPU, where the library needs three.

Over few tokens, a product is bound by reading its weights, unless the matrix is too small to occupy
the GPU. With heads that are shared by queries, those of keys and values are.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from specresearch.models.quantizer import is_quantized

NAMES = ("q_proj", "k_proj", "v_proj")


class _JointProduct:
    """Multiplies by the weights of several layers, and keeps the products until all are taken.

    The layers' weights and biases become parts of one tensor each.

    Args:
        layers: They read the same input, in this order.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self.weight = self._join([layer.weight for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = self._join(biases) if biases else None
        self._input: Tensor | None = None
        self._products: tuple[Tensor, ...] = ()

    def _join(self, parameters: Sequence[Tensor]) -> Float[Tensor, "..."]:
        """Lay parameters one behind the other, which copies nothing if they lie so already."""
        joint = _adjacent(parameters)
        if joint is None:
            joint = torch.cat([parameter.detach() for parameter in parameters])
            for parameter, part in zip(parameters, joint.split(self.sizes), strict=True):
                parameter.data = part
        return joint

    def take(self, number: int, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows _"]:
        """Return the product of one layer."""
        if self._input is not input:
            self._input = input
            self._products = F.linear(input, self.weight, self.bias).split(self.sizes, dim=-1)
        product = self._products[number]
        if number == len(self.sizes) - 1:
            self._input, self._products = None, ()
        return product


class JointLinear(nn.Linear):
    """A linear layer whose product is computed with those of others, unless gradients are enabled.

    It shares the parameters of the layer that it replaces. Changes in place reach the joint
    product; a parameter that is replaced does not.

    Args:
        number: Its place among the layers of the product.
    """

    def __init__(self, linear: nn.Linear, product: _JointProduct, number: int) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self.product: _JointProduct | None = product
        self.number = number

    def forward(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        if self.product is None or torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        return self.product.take(self.number, input)

    def plain(self) -> nn.Linear:
        """Return a plain layer with the same parameters."""
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear.train(self.training)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        """Convert or move the parameters, which then lie apart."""
        self.product = None
        return super()._apply(fn, recurse)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        """Return a plain layer: the parameters of a copy lie apart unless it shares them."""
        copied = memo[id(self)] = copy.deepcopy(self.plain(), memo)
        return copied


def join_projections(model: nn.Module) -> int:
    """Let the projections of every attention be one product; return the number of products.

    Layers of other classes (quantized or adapted ones) and layers with hooks stay.
    """
    split_projections(model)  # parameters that were moved since lie apart
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


def split_projections(model: nn.Module) -> None:
    """Undo `join_projections`, so that the model can be trained."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, JointLinear):
            model.set_submodule(name, layer.plain())


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


def _adjacent(parameters: Sequence[Tensor]) -> Float[Tensor, "..."] | None:
    """Return parameters that lie one behind the other in memory as one tensor."""
    first = parameters[0].detach()
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for parameter in parameters:
        is_next = parameter.data_ptr() == end != 0 and parameter.is_contiguous()
        if not is_next or parameter.untyped_storage().data_ptr() != storage:
            return None
        end += parameter.nbytes
    total = sum(map(len, parameters))
    return first.as_strided((total, *first.shape[1:]), first.stride())
