"""Linear layers that multiply by the int8 weights of torchao as they are, on a CPU.

Without compilation, torchao writes the weights out in the activations' precision for every product,
which takes many times as long as a product with unquantised ones. PyTorch has a kernel that does
not.
"""

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Int8Linear(nn.Linear):
    """A linear layer whose weight is an `Int8Tensor` of torchao with one scale for each output."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        stored: Any = linear.weight
        self._scale = stored.scale.detach().flatten().to(stored.dtype)

    def forward(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        weight: Any = self.weight
        if torch.is_grad_enabled() or not input.is_cpu or input.dtype != self._scale.dtype:
            return F.linear(input, weight, self.bias)
        rows = input.reshape(-1, self.in_features)
        if not len(rows):  # which the kernel does not take
            return input.new_empty((*input.shape[:-1], self.out_features))
        product = torch.ops.aten._weight_int8pack_mm(rows, weight.qdata, self._scale)
        if self.bias is not None:
            product = product + self.bias
        return product.view(*input.shape[:-1], self.out_features)


def use_int8_kernel(model: nn.Module) -> None:
    """Replace the layers of a model whose int8 weights PyTorch's kernel reads."""
    for name, layer in list(model.named_modules()):
        if _has_kernel(layer):
            model.set_submodule(name, Int8Linear(layer))


def _has_kernel(layer: nn.Module) -> TypeGuard[nn.Linear]:
    if type(layer) is not nn.Linear or not is_traceable_wrapper_subclass(layer.weight):
        return False
    weight: Any = layer.weight
    if type(weight).__name__ != "Int8Tensor" or weight.act_quant_kwargs is not None:
        return False
    shifted = weight.zero_point is not None and bool(weight.zero_point.any())
    if shifted or weight.act_pre_scale is not None:
        return False
    by_output = weight.scale.numel() == layer.out_features
    return by_output and weight.device.type == "cpu" and weight.dtype in KERNEL_DTYPES
