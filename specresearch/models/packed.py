"""Linear layers whose weights also lie in the order that oneDNN's kernels read, for models on a CPU.

A pass of speculation multiplies a few rows by every matrix of the model. For that the CPU's default float32 kernels reach a
fraction of the memory's speed, and those of oneDNN, on weights packed once, most of it.
"""

import itertools
from typing import Any, TypeGuard
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from specresearch.models.kv_cache import available_bytes

PACKED_DTYPES = (torch.float32, torch.bfloat16)
EXPECTED_ROWS = 16
SMALLEST_WEIGHT = 1 << 16  # below, a call costs more than the order of the numbers saves

_LIBRARY = torch.library.Library("specresearch", "DEF")
_LIBRARY.define("packed_linear(Tensor input, Tensor weight, Tensor? bias, int number) -> Tensor")
_NUMBERS = itertools.count()
_LAYERS: "WeakValueDictionary[int, PackedLinear]" = WeakValueDictionary()


class PackedLinear(nn.Linear):
    """A linear layer that shares its parameters with `linear` and multiplies by a packed copy where no gradients are taken.

    The weight must not learn. The copy is renewed when the weight is replaced or its version rises, but a fused optimiser
    step and a write through `.data` leave the version as it was: see `unpack_linear_layers`.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self._enlist()

    def _enlist(self) -> None:
        """Make the layer known to compiled graphs, which call it by number; its weight is packed on first use."""
        self.number = next(_NUMBERS)
        _LAYERS[self.number] = self
        self._packed_from = (-1, -1)
        self._packed: Tensor | None = None

    def unpacked(self) -> nn.Linear:
        """Return a plain layer with the same parameters and hooks."""
        plain = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        vars(plain).update(
            {name: value for name, value in vars(self).items() if name in vars(plain)}
        )
        return plain

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._enlist()

    def forward(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        if torch.is_grad_enabled() or input.dtype != self.weight.dtype or not self.weight.is_cpu:
            return F.linear(input, self.weight, self.bias)
        if torch.compiler.is_compiling():
            return torch.ops.specresearch.packed_linear(input, self.weight, self.bias, self.number)
        return self.multiply(input)

    def multiply(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        """The product with the packed copy of the weight."""
        now = (self.weight._version, self.weight.data_ptr())
        if self._packed_from != now:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(
                self.weight.detach(), EXPECTED_ROWS
            )
            self._packed_from = now
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")


@torch.library.impl(_LIBRARY, "packed_linear", "CPU")
def _packed_linear(input: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    return _LAYERS[number].multiply(input)


@torch.library.register_fake("specresearch::packed_linear", lib=_LIBRARY)
def _packed_linear_shape(input: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def pack_linear_layers(model: nn.Module, wanted: bool | None = None) -> int:
    """Replace the plain linear layers of a model on a CPU by packed ones; returns how many bytes the copies take.

    wanted: None packs when the copies fit into half of the free memory. Small layers, layers of
    other classes (quantized or adapted ones) and layers with hooks stay as they are.
    """
    layers = {name: layer for name, layer in model.named_modules() if _can_pack(layer)}
    num_bytes = sum(layer.weight.nbytes for layer in layers.values())
    if wanted is False or (
        wanted is None and num_bytes > available_bytes(torch.device("cpu")) // 2
    ):
        return 0
    for name, layer in layers.items():
        model.set_submodule(name, PackedLinear(layer))
    return num_bytes


def unpack_linear_layers(model: nn.Module) -> None:
    """Replace packed layers by plain ones, which always multiply by their weights as they are: for models that learn."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, PackedLinear):
            model.set_submodule(name, layer.unpacked())


def has_packed_layers(model: nn.Module) -> bool:
    """True if any layer may multiply by a copy of its weight."""
    return any(isinstance(layer, PackedLinear) for layer in model.modules())


def _can_pack(layer: nn.Module) -> TypeGuard[nn.Linear]:
    if type(layer) is not nn.Linear or not torch.backends.mkldnn.is_available():
        return False
    weight = layer.weight
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    suitable = weight.is_cpu and weight.dtype in PACKED_DTYPES and weight.numel() >= SMALLEST_WEIGHT
    return suitable and not weight.is_inference() and not hooked
