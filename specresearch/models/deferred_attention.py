"""Attention as one operation that a compiler does not look into.

Each pass writes other columns and has another mask. So a compiled layer calls this operation, and
the code that runs the layer supplies the attention (`attending`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

Attend = Callable[
    [Tensor, Tensor, Tensor, float | None, int | None, float | None, Tensor | None], Tensor
]
_attending: list[Attend] = []


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """In this block, attention that was deferred is done by `attend`.

    Args:
        attend: Takes queries [B, Hq, N, D], new keys [B, Hkv, N, D] and values [B, Hkv, N, Dv],
            scaling, window, cap of scores and sinks; returns [B, N, Hq, Dv].
    """
    _attending.append(attend)
    try:
        yield
    finally:
        _attending.pop()


@torch.library.custom_op(
    "specresearch::attend",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, float? scaling, int? window, float? softcap, "
    "Tensor? sinks) -> Tensor",
)
def _attend(query: Tensor, key: Tensor, value: Tensor, *settings: Any) -> Tensor:
    return _attending[-1](query, key, value, *settings).contiguous()


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    rows, num_heads, num_nodes, _width = query.shape
    return query.new_empty((rows, num_nodes, num_heads, value.shape[3]))


class DeferredCache(Cache):
    """Keeps nothing: new keys and values go on to the attention, which is deferred."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class DeferredPlan:
    """Takes the place of an attention plan."""

    @staticmethod
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        return _attend(query, key, value, scaling, window, softcap, sinks)
