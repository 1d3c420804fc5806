"""Linear layers with a second copy of their weights in the order that oneDNN's kernels read.

A pass of speculation multiplies a few rows by every matrix of the model. On a CPU, the default
float32 kernels reach a fraction of the memory's bandwidth; oneDNN's, on weights packed once, reach
most of it.
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
    """A linear layer that multiplies by a packed copy of its weight unless gradients are enabled.

    The weight must not be trained. The copy is renewed when the weight is replaced or its version
    rises, but a fused optimiser step and a write through `.data` leave the version as it was: see
    `unpack_linear_layers`.

    Args:
        linear: The layer to share parameters with.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self._register()

    def _register(self) -> None:
        """Number the layer for compiled graphs; its weight is packed on first use."""
        self.number = next(_NUMBERS)
        _LAYERS[self.number] = self
        self._packed_from = (-1, -1)
        self._packed: Tensor | None = None

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copy; 0 until the first use."""
        return 0 if self._packed is None else self.weight.nbytes

    def unpacked(self) -> nn.Linear:
        """Return a plain layer with the same parameters and hooks."""
        plain = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        for name in vars(plain):
            vars(plain)[name] = vars(self)[name]
        return plain

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._register()

    def forward(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        if torch.is_grad_enabled() or input.dtype != self.weight.dtype or not self.weight.is_cpu:
            return F.linear(input, self.weight, self.bias)
        if torch.compiler.is_compiling():
            return torch.ops.specresearch.packed_linear(input, self.weight, self.bias, self.number)
        return self.multiply(input)

    def multiply(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        """Return the product with the packed copy of the weight."""
        weight = self.weight
        source = (weight._version, weight.data_ptr())
        if self._packed_from != source:
            reorder = torch.ops.mkldnn._reorder_linear_weight
            self._packed = reorder(weight.detach(), EXPECTED_ROWS)
            self._packed_from = source
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")


@torch.library.impl(_LIBRARY, "packed_linear", "CPU")
def _packed_linear(input: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    return _LAYERS[number].multiply(input)


@torch.library.register_fake("specresearch::packed_linear", lib=_LIBRARY)
def _packed_linear_shape(input: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def pack_linear_layers(model: nn.Module, wanted: bool | None = None) -> int:
    """Replace the plain linear layers of a model on a CPU by packed ones.

    Small layers, layers of other classes (quantized or adapted ones) and layers with hooks stay.

    Args:
        wanted: None packs if the copies fit into half of the free memory.

    Returns:
        The bytes that the copies take.
    """
    layers = {name: layer for name, layer in model.named_modules() if _can_pack(layer)}
    num_bytes = sum(layer.weight.nbytes for layer in layers.values())
    if wanted is None:
        wanted = num_bytes <= available_bytes(torch.device("cpu")) // 2
    if not wanted:
        return 0
    for name, layer in layers.items():
        model.set_submodule(name, PackedLinear(layer))
    return num_bytes


def unpack_linear_layers(model: nn.Module) -> None:
    """Replace packed layers by plain ones, so that the model can be trained."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, PackedLinear):
            model.set_submodule(name, layer.unpacked())


def has_packed_layers(model: nn.Module) -> bool:
    """Return True if any layer may multiply by a copy of its weight."""
    return any(isinstance(layer, PackedLinear) for layer in model.modules())


def _can_pack(layer: nn.Module) -> TypeGuard[nn.Linear]:
    if type(layer) is not nn.Linear or not torch.backends.mkldnn.is_available():
        return False
    weight = layer.weight
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    suitable = weight.is_cpu and weight.dtype in PACKED_DTYPES and weight.numel() >= SMALLEST_WEIGHT
    return suitable and not weight.is_inference() and not hooked
