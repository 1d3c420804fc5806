"""Linear layers with a second copy of their weights in the order that a fast CPU kernel reads.

A pass of speculation multiplies a few rows by every matrix of the model. On a CPU, the default
kernels reach a fraction of the memory's bandwidth; others, on weights packed once, most of it.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any, TypeGuard
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from specresearch.models.kv_cache import available_bytes
from specresearch.models.linear_kernels import ONEDNN, PLAIN, LinearKernel, choose_kernel, serves
from specresearch.models.quantizer import is_quantized

PACKED_DTYPES = (torch.float32, torch.bfloat16)
SMALLEST_WEIGHT = 1 << 16  # below, a call costs more than the order of the numbers saves
SMALLEST_MEASURED = 1 << 26  # weights of a model; caches hold much of a smaller one
QUANTIZED = "quantized"  # a kernel of the quantising library, or `Int8Linear`

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
        kernel: Whose order the copy has.
    """

    def __init__(self, linear: nn.Linear, kernel: LinearKernel = ONEDNN) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self.kernel = kernel
        self._register()

    def _register(self) -> None:
        """Number the layer for compiled graphs; its weight is packed on first use."""
        self.number = next(_NUMBERS)
        _LAYERS[self.number] = self
        self._packed_from = (-1, -1)
        self._packed: Tensor | None = None
        self._in_use = self.kernel

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copy; 0 until the first use."""
        return 0 if self._packed is None else self.weight.nbytes * self._in_use.copies

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
        weight = self.weight  # looked up once: attributes of modules are slow
        if torch.is_grad_enabled() or input.dtype != weight.dtype or not weight.is_cpu:
            return F.linear(input, weight, self.bias)
        if torch.compiler.is_compiling():
            return torch.ops.specresearch.packed_linear(input, weight, self.bias, self.number)
        return self.multiply(input)

    def multiply(self, input: Float[Tensor, "*rows I"]) -> Float[Tensor, "*rows O"]:
        """Return the product with the packed copy of the weight."""
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None
        source = (weight._version, weight.data_ptr())
        if self._packed_from != source:
            self._pack(weight)
            self._packed_from = source
        assert self._packed is not None
        return self._in_use.multiply(input, weight, self._packed, bias)

    def _pack(self, weight: Tensor) -> None:
        """Copy the weight, unless it was converted to a precision that the kernel lacks."""
        self._in_use = self.kernel if serves(self.kernel, weight.dtype) else PLAIN
        self._packed = self._in_use.reorder(weight.detach())


@torch.library.impl(_LIBRARY, "packed_linear", "CPU")
def _packed_linear(input: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    return _LAYERS[number].multiply(input)


@torch.library.register_fake("specresearch::packed_linear", lib=_LIBRARY)
def _packed_linear_shape(input: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def pack_linear_layers(model: nn.Module, wanted: bool | None = None) -> int:
    """Replace the plain linear layers of a model on a CPU by packed ones.

    Small layers, layers of other classes (quantized or adapted ones) and layers with hooks stay,
    and so do layers whose plain weights are read fastest. Kernels are chosen by a measurement if
    the model is large.

    Args:
        wanted: None packs if the copies fit into half of the free memory.

    Returns:
        The bytes that the copies take.
    """
    layers = {name: layer for name, layer in model.named_modules() if _can_pack(layer)}
    num_bytes = sum(layer.weight.nbytes for layer in layers.values())
    room = available_bytes(torch.device("cpu")) // 2
    if wanted is None:
        wanted = num_bytes <= room
    if not wanted:
        return 0
    kernels = _kernels_by_shape(layers.values(), most_copies=2 if 2 * num_bytes <= room else 1)
    packed_bytes = 0
    for name, layer in layers.items():
        kernel = kernels[layer.weight.shape, layer.weight.dtype]
        if kernel != PLAIN:
            model.set_submodule(name, PackedLinear(layer, kernel))
            packed_bytes += layer.weight.nbytes * kernel.copies
    return packed_bytes


def _kernels_by_shape(
    layers: Collection[nn.Linear], most_copies: int
) -> dict[tuple[torch.Size, torch.dtype], LinearKernel]:
    """Choose one kernel for all layers of a shape."""
    weights: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = defaultdict(list)
    for layer in layers:
        weights[layer.weight.shape, layer.weight.dtype].append(layer.weight)
    measure = sum(layer.weight.numel() for layer in layers) >= SMALLEST_MEASURED
    return {
        key: choose_kernel(group, measure=measure, most_copies=most_copies)
        for key, group in weights.items()
    }


def linear_kernels(model: nn.Module) -> str:
    """Name the kernels of all but small linear layers; their numbers if they differ."""
    numbers: Counter[str] = Counter()
    for layer in model.modules():
        if isinstance(layer, PackedLinear):
            numbers[layer.kernel.name] += 1
        elif isinstance(layer, nn.Linear) and layer.weight.numel() >= SMALLEST_WEIGHT:
            numbers[QUANTIZED if is_quantized(layer) else PLAIN.name] += 1
    if len(numbers) < 2:
        return next(iter(numbers), PLAIN.name)
    return ", ".join(f"{number} x {name}" for name, number in numbers.most_common())


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
    if is_quantized(layer):
        return False
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    suitable = weight.is_cpu and weight.dtype in PACKED_DTYPES and weight.numel() >= SMALLEST_WEIGHT
    return suitable and not weight.is_inference() and not hooked
