"""Attention of new tokens over cached ones, with tree masks, windows, soft caps and sinks."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from specresearch.models.attention_plan import AttentionPlan, GivenBiases
from specresearch.models.deferred_attention import DeferredPlan
from specresearch.models.ragged import Packing
from specresearch.models.two_part import TwoPartPlan


class _Settings(NamedTuple):
    """What a layer asks of its attention beside the mask."""

    scaling: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " Hq"] | None = None

    @property
    def is_plain(self) -> bool:
        """True if fused kernels can compute it."""
        return self.softcap is None and self.sinks is None


def slot_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "_ Hq _ D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    attention_mask: Tensor | None,
    *,
    attention_plan: AttentionPlan | GivenBiases | TwoPartPlan | DeferredPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " Hq"] | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "_ _ Hq Dv"], None]:
    """Attend for a layer of a model; `attention_mask` is ignored, the plan decides.

    Query heads that share a key head are folded into the rows of one matrix product, so keys and
    values are never copied per query head. In a packed pass, the query is [1, Hq, T, D] and the
    result [1, T, Hq, Dv].
    """
    if isinstance(attention_plan, DeferredPlan):
        settings = scaling, sliding_window, softcap, s_aux
        return attention_plan.attend(query, key, value, *settings), None
    if sliding_window is not None and attention_plan.width <= sliding_window:
        sliding_window = None
    if isinstance(attention_plan, TwoPartPlan):
        assert softcap is None
        out = attention_plan.attend(
            query, key, value, scaling=scaling, window=sliding_window, sinks=s_aux
        )
        return out, None
    settings = _Settings(scaling, sliding_window, softcap, s_aux)
    packing = attention_plan.packing
    if packing is None:
        return _attend(query, key, value, attention_plan, settings), None
    assert isinstance(attention_plan, AttentionPlan)
    if packing.alone is not None and settings.is_plain and sliding_window is None:
        return _attend_by_row(query, key, value, attention_plan, packing, scaling=scaling), None
    query = packing.unpack(query.transpose(1, 2)).transpose(1, 2)
    return packing.pack(_attend(query, key, value, attention_plan, settings)), None


def _attend(
    query: Float[Tensor, "B Hq N D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    plan: AttentionPlan | GivenBiases,
    settings: _Settings,
) -> Float[Tensor, "B N Hq Dv"]:
    rows, num_heads, num_nodes = query.shape[:3]
    kv_heads = key.shape[1]
    group = num_heads // kv_heads
    if settings.is_plain and plan.from_empty and num_nodes > 1 and settings.window is None:
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=settings.scaling, enable_gqa=group > 1
        )
        return out.transpose(1, 2)
    folded = query.reshape(rows, kv_heads, group * num_nodes, -1)
    bias = plan.bias(settings.window, group, query.device)
    if settings.is_plain:
        out = F.scaled_dot_product_attention(
            folded, key, value, attn_mask=bias, scale=settings.scaling
        )
    else:
        out = _explicit(folded, key, value, bias, settings)
    return out.reshape(rows, num_heads, num_nodes, -1).transpose(1, 2)


def _attend_by_row(
    query: Float[Tensor, "1 Hq T D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    plan: AttentionPlan,
    packing: Packing,
    scaling: float | None,
) -> Float[Tensor, "1 T Hq Dv"]:
    """Attend the rows `packing.alone` one by one over their own columns, the others together."""
    num_heads, kv_heads = query.shape[1], key.shape[1]
    group = num_heads // kv_heads
    out = value.new_empty((1, query.shape[2], num_heads, value.shape[3]))
    assert packing.alone is not None
    if len(packing.alone) < len(packing.lengths):
        roots = query.index_select(2, packing.roots).permute(2, 1, 0, 3)
        keys, values = key[:, :, : plan.roots.width], value[:, :, : plan.roots.width]
        together = _attend(roots, keys, values, plan.roots, _Settings(scaling))
        out.index_copy_(1, packing.roots, together.transpose(0, 1))
    parts = query.split(packing.lengths, dim=2)
    for b in packing.alone:
        begin, num_nodes = packing.begins[b], packing.lengths[b]
        columns = plan.starts[b] + num_nodes
        folded = parts[b].reshape(1, kv_heads, group * num_nodes, -1)
        keys, values = key[b : b + 1, :, :columns], value[b : b + 1, :, :columns]
        bias = plan.bias_of_row(b, num_nodes, group)
        attended = F.scaled_dot_product_attention(
            folded, keys, values, attn_mask=bias, scale=scaling
        )
        attended = attended.reshape(num_heads, num_nodes, -1)
        out[0, begin : begin + num_nodes] = attended.transpose(0, 1)
    return out


def _explicit(
    query: Float[Tensor, "B Hkv GN D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    bias: Float[Tensor, "#B 1 GN L"] | None,
    settings: _Settings,
) -> Float[Tensor, "B Hkv GN Dv"]:
    """Compute what fused kernels lack: capped scores, and sinks that only take probability."""
    scaling = query.shape[-1] ** -0.5 if settings.scaling is None else settings.scaling
    scores = query @ key.transpose(2, 3) * scaling
    if settings.softcap is not None:
        scores = settings.softcap * torch.tanh(scores / settings.softcap)
    if bias is not None:
        scores = scores + bias
    if settings.sinks is not None:
        num_nodes = query.shape[1] * query.shape[2] // settings.sinks.numel()
        sinks = settings.sinks.view(key.shape[1], -1).repeat_interleave(num_nodes, 1)
        sinks = sinks.to(scores.dtype)[None, :, :, None].expand(scores.shape[0], -1, -1, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    accurate = torch.float32 if scores.dtype.itemsize < 4 else scores.dtype
    probs = scores.softmax(-1, dtype=accurate).to(value.dtype)
    return probs[..., : key.shape[2]] @ value
