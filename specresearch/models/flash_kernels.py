"""Flash kernels that return a log-sum-exp, behind one signature.

A kernel attends the queries of several sequences to stretches of the cache, which it reads in
place, wherever they begin.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

MASK_ALIGNMENT = 16  # columns


@dataclass(frozen=True)
class Sequences:
    """Which queries attend to which stretch of the keys; all sequences have as many queries.

    Attributes:
        num_queries: Queries of each sequence, one sequence after the other.
        table: For each sequence its first query, and first key and number of keys of its stretch,
            possibly none; a last column only ends the queries.
        longest: Upper bound of the keys of a stretch, known on the host.
        causal: The last query sees its whole stretch, and each one before it one key less.
            Otherwise all queries see the whole stretch.
        window: Most keys that a query of a causal call sees.
    """

    num_queries: int
    table: Int[Tensor, "3 _"]
    longest: int
    causal: bool = False
    window: int | None = None

    @staticmethod
    def of(
        num_queries: int,
        begins: Int[Tensor, " num"],
        lengths: Int[Tensor, " num"],
        device: torch.device,
        *,
        longest: int,
        causal: bool = False,
        window: int | None = None,
    ) -> "Sequences":
        """Build the table on `device` from stretches that lie there, or on the host."""
        queries = torch.arange(len(begins) + 1, device=begins.device) * num_queries
        table = torch.stack([queries, F.pad(begins, (0, 1)), F.pad(lengths, (0, 1))])
        return Sequences(
            num_queries,
            table.to(torch.int32).to(device, non_blocking=True),
            longest=longest,
            causal=causal,
            window=window,
        )

    @property
    def device(self) -> torch.device:
        return self.table.device

    @property
    def window_size(self) -> tuple[int, int]:
        """Keys that a query sees before and after its own; -1 means all."""
        return -1 if self.window is None else self.window - 1, 0 if self.causal else -1

    @property
    def cu_seqlens_q(self) -> Int[Tensor, " _"]:
        return self.table[0]

    @property
    def cu_seqlens_k(self) -> Int[Tensor, " _"]:
        """Where stretches begin; the entry behind the last one is unused, as `seqused_k` is set."""
        return self.table[1]

    @property
    def seqused_k(self) -> Int[Tensor, " _"]:
        return self.table[2, :-1]

    def bias(self, length: int, dtype: torch.dtype) -> Float[Tensor, "N _"]:
        """Return the mask of a causal call over a stretch of some length."""
        query = torch.arange(length - self.num_queries, length, device=self.device)[:, None]
        distance = query - torch.arange(length, device=self.device)
        hidden = distance < 0
        if self.window is not None:
            hidden |= distance >= self.window
        return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)


@dataclass(frozen=True)
class FlashKernel:
    """A kernel.

    Attributes:
        attend: Takes queries [T, Hq, D], keys and values [SC, Hkv, D] (all columns of the cache),
            the sequences and the scale of scores. Returns the outputs [T, Hq, D], zeros for an
            empty stretch, and the log-sum-exp of the scores [Hq, T], infinite of either sign for an
            empty stretch (see `nothing_is_negative`).
        is_package: It comes with an optional package.
        splits_keys: It spreads a long stretch over the whole device by itself.
    """

    name: str
    attend: Callable[[Tensor, Tensor, Tensor, Sequences, float], tuple[Tensor, Tensor]]
    is_package: bool = False
    splits_keys: bool = False


def _attend_on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, sequences: Sequences, scale: float
) -> tuple[Tensor, Tensor]:
    num_queries = sequences.num_queries
    out = torch.zeros_like(query)
    accurate = torch.promote_types(query.dtype, torch.float32)
    lse = query.new_full((query.shape[1], query.shape[0]), -torch.inf, dtype=accurate)
    stretches = sequences.table[1:, :-1].T.tolist()
    for i, (begin, length) in enumerate(stretches):
        if length == 0:
            continue  # the kernel would divide by zero and end the process
        rows = slice(i * num_queries, (i + 1) * num_queries)
        columns = slice(begin, begin + length)
        attended, row_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[rows].transpose(0, 1)[None],
            keys[columns].transpose(0, 1)[None],
            values[columns].transpose(0, 1)[None],
            attn_mask=sequences.bias(length, query.dtype) if sequences.causal else None,
            scale=scale,
        )
        out[rows], lse[:, rows] = attended[0].transpose(0, 1), row_lse[0]
    return out, lse


def _attend_by_torch(
    query: Tensor, keys: Tensor, values: Tensor, sequences: Sequences, scale: float
) -> tuple[Tensor, Tensor]:
    left, right = sequences.window_size
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        query,
        keys,
        values,
        sequences.cu_seqlens_q,
        sequences.cu_seqlens_k,
        sequences.num_queries,
        sequences.longest,
        0.0,
        sequences.causal,
        False,
        scale=scale,
        window_size_left=left,
        window_size_right=right,
        seqused_k=sequences.seqused_k,
    )
    return out, lse


def _attend_by_flash_attn(
    query: Tensor, keys: Tensor, values: Tensor, sequences: Sequences, scale: float
) -> tuple[Tensor, Tensor]:
    # the public function lacks seqused_k
    from flash_attn.flash_attn_interface import (  # pyright: ignore[reportMissingImports]
        _flash_attn_varlen_forward,
    )

    left, right = sequences.window_size
    out, lse, *_ = _flash_attn_varlen_forward(
        query,
        keys,
        values,
        sequences.cu_seqlens_q,
        sequences.cu_seqlens_k,
        sequences.num_queries,
        sequences.longest,
        0.0,
        scale,
        causal=sequences.causal,
        window_size_left=left,
        window_size_right=right,
        seqused_k=sequences.seqused_k,
    )
    return out, lse


def _attend_on_hopper(
    module: str, query: Tensor, keys: Tensor, values: Tensor, sequences: Sequences, scale: float
) -> tuple[Tensor, Tensor]:
    out, lse, *_ = import_module(module).flash_attn_varlen_func(
        query,
        keys,
        values,
        sequences.cu_seqlens_q,
        sequences.cu_seqlens_k,
        sequences.num_queries,
        sequences.longest,
        seqused_k=sequences.seqused_k,
        softmax_scale=scale,
        causal=sequences.causal,
        window_size=sequences.window_size if sequences.window is not None else (-1, -1),
        num_splits=0,
        return_attn_probs=True,
    )
    return out, lse


def nothing_is_negative(lse: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Replace +inf, which FlashAttention 2 gives as the log-sum-exp of nothing."""
    return lse.nan_to_num(nan=torch.nan, posinf=-torch.inf, neginf=-torch.inf)


def attend_masked(
    query: Float[Tensor, "B H R D"],
    keys: Float[Tensor, "B H E D"],
    values: Float[Tensor, "B H E D"],
    bias: Float[Tensor, "B H R E"],
    scale: float,
) -> tuple[Float[Tensor, "B H R D"], Float[Tensor, "B H R"]]:
    """Attend under a mask; return output and natural log-sum-exp of the scores.

    These are the fused kernels below `scaled_dot_product_attention`, which keeps the log-sum-exp
    to itself.

    Args:
        bias: 0 or -inf, as `mask_of` makes it; every query sees at least one key.
    """
    if query.device.type == "cuda":
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, keys, values, bias, True, scale=scale
        )
        return out, lse[:, :, : query.shape[2]]  # it is padded
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, attn_mask=bias, scale=scale
    )


def mask_of(
    hidden: Bool[Tensor, "B 1 R E"], num_heads: int, dtype: torch.dtype
) -> Float[Tensor, "B H R E"]:
    """Return the mask of `attend_masked`, whose rows a GPU wants aligned."""
    num_columns = hidden.shape[3]
    bias = torch.zeros_like(F.pad(hidden, (0, -num_columns % MASK_ALIGNMENT)), dtype=dtype)
    bias = bias[..., :num_columns].masked_fill_(hidden, -torch.inf)
    return bias.expand(-1, num_heads, -1, -1)


KERNELS = {
    "cuda": (
        FlashKernel(
            "flash-attn's Hopper package",
            partial(_attend_on_hopper, "flash_attn_interface"),
            is_package=True,
            splits_keys=True,
        ),
        FlashKernel(
            "fa3-fwd",
            partial(_attend_on_hopper, "fa3_fwd_interface"),
            is_package=True,
            splits_keys=True,
        ),
        FlashKernel("flash-attn", _attend_by_flash_attn, is_package=True),
        FlashKernel("PyTorch's flash kernel", _attend_by_torch),
    ),
    "cpu": (FlashKernel("PyTorch's flash kernel", _attend_on_cpu, splits_keys=True),),
}
