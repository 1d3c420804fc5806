"""The pretended device: runs every operation on the CPU, and counts what a GPU would have done."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specresearch.mock_cuda.activity import Activity, CapturedOperation
from specresearch.mock_cuda.flash import efficient_attention, flash_attention
from specresearch.mock_cuda.runtime import MEMORY, mocked_runtime
from specresearch.mock_cuda.tensor import DEVICE, MockTensor

aten = torch.ops.aten

# The size of the result depends on values, so the host must see them.
_READS_VALUES = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
}
_INDEXES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
_INDEXES |= {aten._index_put_impl_.default, aten._unsafe_index.Tensor}
_ALLOCATES = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default}
_ALLOCATES |= {aten.new_empty.default, aten.new_empty_strided.default}
_COMPUTED_HERE = {
    aten._flash_attention_forward.default: flash_attention,
    aten._scaled_dot_product_efficient_attention.default: efficient_attention,
}
_ALIASES = {aten.detach.default, aten._unsafe_view.default, aten.lift_fresh.default}


class MockCuda:
    """Pretends, in this block and this thread, that there is one CUDA device, `cuda:0`.

    Values are computed on the CPU, so code on the device decodes real text. Every operation there
    is counted in `activity`, and so is every wait: reading a value, an index by a mask, a copy to
    the host, a blocking copy from it. An operation on tensors of both devices is refused. Only an
    explicit `cuda:0` reaches the device, not `cuda`. Time means nothing here.

    Args:
        free: Bytes of memory that the device says are free, whatever is allocated on it.
    """

    def __init__(self, free: int = MEMORY) -> None:
        self.activity = Activity()
        self.free = free
        self._blocks = ExitStack()

    def __enter__(self) -> "MockCuda":
        self._blocks.enter_context(mocked_runtime(self.activity, self.free))
        self._blocks.enter_context(_Dispatch(self.activity))
        before = torch._C._only_lift_cpu_tensors()
        self._blocks.callback(torch._C._set_only_lift_cpu_tensors, before)
        # torch.tensor(values, device=...) then copies as an operation of its own
        torch._C._set_only_lift_cpu_tensors(True)
        return self

    def __exit__(self, *error: object) -> None:
        self._blocks.close()


class _Dispatch(TorchDispatchMode):
    """Runs the operations of the pretended device."""

    def __init__(self, activity: Activity) -> None:
        super().__init__()
        self.activity = activity

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        leaves = list(_leaves((args, kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        device = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
        is_on_device = any(isinstance(tensor, MockTensor) for tensor in tensors)
        if not is_on_device and not _is_mocked(device):
            return func(*args, **kwargs)
        if func._can_decompose():  # inference mode passes on what is made of other operations
            with self:
                return func.decompose(*args, **kwargs)
        if func in (aten._to_copy.default, aten.copy_.default):
            return self._copy(func, args, kwargs)
        self._count(func, args, tensors)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        return self._run(func, args, kwargs)

    def _count(self, func: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        hosted = [
            tensor for tensor in tensors if not isinstance(tensor, MockTensor) and tensor.dim() > 0
        ]
        if func in _INDEXES:
            for index in args[1]:
                if index is None:
                    continue
                if not isinstance(index, MockTensor):
                    hosted = [tensor for tensor in hosted if tensor is not index]
                    self.activity.wait(f"{func} by an index on the host")
                elif index.dtype in (torch.bool, torch.uint8) and not _is_masked_fill(func, args):
                    self.activity.wait(f"{func} by a mask")
        if hosted:
            raise RuntimeError(
                f"{func} on tensors of two devices, {DEVICE} and cpu: a tensor of shape "
                f"{tuple(hosted[0].shape)} lies on the host"
            )
        if not _is_free(func):
            self.activity.launch(str(func))
        if func in _READS_VALUES:
            self.activity.wait(str(func))

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation on the held tensors; a result that is an argument stays that one."""
        mocks = {
            id(leaf.held): leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, MockTensor)
        }

        def wrap(result: Any) -> Any:
            if not isinstance(result, Tensor):
                return result
            return mocks[id(result)] if id(result) in mocks else MockTensor(result)

        return _mapped(wrap, self._compute(func, args, kwargs))

    def _compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation on the held tensors, and note it in a graph that is being captured."""
        is_free = _is_free(func)
        func = _COMPUTED_HERE.get(func, func)
        held_args, held_kwargs = _held(args), _held(kwargs)
        results = func(*held_args, **held_kwargs)
        if self.activity.captured is not None and not is_free:
            leaves = tuple(_leaves(results))
            operation = CapturedOperation(func, held_args, held_kwargs, leaves)
            self.activity.captured.append(operation)
        return results

    def _copy(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Copy within the device, to it, or to the host."""
        if func is aten.copy_.default:
            target, source, *rest = args
            waits = not (rest[0] if rest else kwargs.get("non_blocking", False))
            source_there, target_there = (
                isinstance(source, MockTensor),
                isinstance(target, MockTensor),
            )
        else:
            source, target, device = args[0], None, kwargs.get("device")
            waits = not kwargs.get("non_blocking", False)
            source_there = isinstance(source, MockTensor)
            target_there = source_there if device is None else _is_mocked(device)
        if source_there and target_there:
            is_same = func is not aten.copy_.default and kwargs.get("dtype") in (None, source.dtype)
            if not is_same:
                self.activity.launch(str(func))
        elif source_there:
            # memory that is not pinned: the copy is over when the call returns
            self.activity.wait(f"{func} to the host")
        elif source.dim() == 0 and func is aten.copy_.default:
            self.activity.launch("fill")
        elif waits:
            self.activity.wait(f"{func} from the host, non_blocking=False")
        else:
            self.activity.upload()
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        result = self._compute(func, args, kwargs)
        if target is not None:
            return target
        return MockTensor(result) if target_there else result


def _is_mocked(device: torch.device | None) -> bool:
    """Return whether this is the pretended device, which torch's C++ code takes for `meta`."""
    return device is not None and device.type in ("cuda", "meta")


def _held(values: Any) -> Any:
    return _mapped(lambda leaf: leaf.held if isinstance(leaf, MockTensor) else leaf, values)


def _leaves(values: Any) -> Iterator[Any]:
    """Yield what an operation takes or returns, faster than torch's own trees do."""
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, list | tuple):
        yield values
        return
    for value in values:
        yield from _leaves(value)


def _mapped(function: Callable[[Any], Any], values: Any) -> Any:
    """Return the same nested values with a function applied to each leaf."""
    if isinstance(values, list | tuple):
        return type(values)([_mapped(function, value) for value in values])
    if isinstance(values, dict):
        return {name: _mapped(function, value) for name, value in values.items()}
    return function(values)


@cache
def _is_free(func: Any) -> bool:
    """Return whether an operation launches nothing: a view, an alias or memory alone."""
    if func in _ALLOCATES or func in _ALIASES:
        return True
    returns = func._schema.returns
    views = [value.alias_info is not None and not value.alias_info.is_write for value in returns]
    return bool(views) and all(views)


def _is_masked_fill(func: Any, args: Sequence[Any]) -> bool:
    """Return whether torch turns `x[mask] = number` into a fill, which needs no index."""
    writes = func not in (aten.index.Tensor, aten._unsafe_index.Tensor)
    return writes and len(args[1]) == 1 and args[2].numel() == 1
