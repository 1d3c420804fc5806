"""How much memory models take, and the most that was in use."""

import resource
import sys
from collections.abc import Iterable, Sequence

import psutil
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from specresearch.models.packed import PackedLinear
from specresearch.models.slot_model import SlotModel

# in errors that torch and its libraries raise as plain RuntimeErrors
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")


def weight_bytes(modules: Sequence[nn.Module], besides: Sequence[nn.Module] = ()) -> int:
    """Return the bytes of parameters, buffers and packed copies; shared memory counts once.

    Args:
        besides: Modules that own what they share with `modules`.
    """
    packed = set(_packed_layers(modules)) - set(_packed_layers(besides))
    return stored_bytes(modules, besides) + sum(layer.packed_bytes for layer in packed)


def stored_bytes(modules: Sequence[nn.Module], besides: Sequence[nn.Module] = ()) -> int:
    """Return the same without packed copies: what a checkpoint of them would take."""
    owned = {tensor.untyped_storage().data_ptr() for tensor in _tensors(besides)}
    storages = {}
    for tensor in _tensors(modules):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def used_bytes(device: torch.device) -> int:
    """Return the memory of tensors on all GPUs, or of this process on a CPU."""
    if device.type == "cuda":
        return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
    return resident_bytes()


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return psutil.Process().memory_info().rss


def module_of(model: SlotModel | nn.Module) -> nn.Module:
    """Return what holds the weights of a model or head."""
    return model if isinstance(model, nn.Module) else model.module


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of tensors on all GPUs, or of this process on a CPU."""
    if device.type == "cuda":
        return sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def _tensors(modules: Iterable[nn.Module]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            tensors += stored_tensors(tensor)
    return tensors


def stored_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that hold the data: wrappers such as torchao's have no storage."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in stored_tensors(getattr(tensor, name))]


def _packed_layers(modules: Iterable[nn.Module]) -> list[PackedLinear]:
    return [
        part for module in modules for part in module.modules() if isinstance(part, PackedLinear)
    ]
