"""PyTorch's fused attention kernels of the pretended device."""

from typing import Any

import torch
from torch import Tensor

LSE_ALIGNMENT = 32  # queries
Attended = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float,
    window_size_left: int,
    window_size_right: int,
    seqused_k: Tensor,
    **_: Any,
) -> Attended:
    """Compute what `aten._flash_attention_forward` does, sequence by sequence, as we call it.

    Like FlashAttention 2, it gives +inf as the log-sum-exp of nothing.
    """
    out, group = torch.zeros_like(query), query.shape[1] // key.shape[1]
    lse = query.new_full((query.shape[1], query.shape[0]), torch.inf, dtype=torch.float32)
    ends, begins, lengths = cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), seqused_k.tolist()
    for i, length in enumerate(lengths):
        assert ends[i + 1] - ends[i] <= max_q
        assert length <= max_k
        if length == 0:
            continue
        rows, columns = slice(ends[i], ends[i + 1]), slice(begins[i], begins[i] + length)
        keys, values = (
            part[columns].double().repeat_interleave(group, 1).transpose(0, 1)
            for part in (key, value)
        )
        scores = query[rows].double().transpose(0, 1) @ keys.transpose(1, 2) * scale
        at = torch.arange(length - scores.shape[1], length)[:, None]
        distance = at - torch.arange(length)
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if is_causal:
            hidden |= distance < 0
        if window_size_left >= 0:
            hidden |= distance > window_size_left
        scores = scores.masked_fill(hidden, -torch.inf)
        out[rows] = (scores.softmax(-1) @ values).transpose(0, 1).to(out.dtype)
        lse[:, rows] = scores.logsumexp(-1).float()
    nothing = torch.zeros(2, dtype=torch.uint64)
    return out, lse, nothing, nothing, query.new_zeros(0)


def efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    compute_log_sumexp: bool,
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute what `aten._scaled_dot_product_efficient_attention` does, as we call it.

    Like the kernel, it refuses a mask of unaligned rows, and pads the log-sum-exp.
    """
    assert compute_log_sumexp
    assert bias.dtype == query.dtype
    assert bias.shape == (*query.shape[:3], key.shape[2])
    assert bias.stride(3) == 1
    assert bias.stride(2) % (16 // bias.itemsize) == 0
    scores = query.double() @ key.double().transpose(2, 3) * scale + bias.double()
    out = (scores.softmax(-1) @ value.double()).to(query.dtype)
    lse = scores.logsumexp(-1).float()
    padding = -lse.shape[2] % LSE_ALIGNMENT
    nothing = torch.zeros((), dtype=torch.int64)
    return out, torch.nn.functional.pad(lse, (0, padding)), nothing, nothing
