"""Tensors of the pretended device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DEVICE = torch.device("cuda:0")

Reader = Callable[["MockTensor"], Any]


class MockTensor(Tensor):
    """A tensor that says it lies on `DEVICE`, and holds its values on the CPU.

    For torch's own C++ code it lies on the `meta` device: a build without CUDA refuses tensors on
    one that it does not know.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "MockTensor":
        with torch.inference_mode(False):  # a view of a normal tensor must be a normal one
            mock = Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                layout=held.layout,
                device=torch.device("meta"),
            )
        mock.held = held
        return mock

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"MockTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device='{DEVICE}')"

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func} on a tensor of a MockCuda that is not entered")

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _PROPERTIES:
            return _PROPERTIES[func]
        if func is Tensor.tolist:  # reads memory without an operation
            return args[0].cpu().tolist()
        if func in _HOST_ONLY:
            raise TypeError(
                f"can't convert a tensor on {DEVICE} to numpy; call Tensor.cpu() to copy it first"
            )
        if func is F.scaled_dot_product_attention:
            return fused_attention(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@torch.library.custom_op("specresearch::mock_attention", mutates_args=())
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention as one operation: torch would choose the many small ones of `meta`."""
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _getter(name: str) -> Callable[..., Any]:
    return getattr(Tensor, name).__get__


_PROPERTIES: dict[Callable[..., Any], Any] = {
    _getter("device"): DEVICE,
    _getter("is_cuda"): True,
    _getter("is_cpu"): False,
    _getter("is_meta"): False,
}
_HOST_ONLY = {Tensor.numpy, Tensor.__array__}
