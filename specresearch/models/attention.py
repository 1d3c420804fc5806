"""Attention of a few new tokens over slots of cached ones, with the tree mask, windows, soft caps and sinks inside.

One `AttentionPlan` is made per forward pass and shared by every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.models.ragged import Packing
from specresearch.proposal import Topology, upload


@dataclass
class AttentionPlan:
    """Which cached columns each new token sees.

    starts: columns already committed in each row. width: L, columns read. flash: use flash-attn where it applies
    (chains, CUDA, half precision). first: nodes of the tree that earlier passes have written; the others are the new tokens.
    packing: where the pass is packed.
    """

    starts: tuple[int, ...]
    topology: Topology
    width: int
    dtype: torch.dtype
    device: torch.device
    flash: bool = False
    first: int = 0
    packing: Packing | None = None
    _biases: dict[tuple[int | None, int, torch.device], Tensor | None] = field(default_factory=dict)
    _by_row: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _ends: dict[torch.device, Int[Tensor, " B"]] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        return self.topology.num_nodes

    @property
    def from_empty(self) -> bool:
        """Chains written into empty slots: the plain causal triangle."""
        return self.topology.is_chain and self.first == 0 and not any(self.starts)

    def bias(
        self, window: int | None = None, repeats: int = 1, device: torch.device | None = None
    ) -> Float[Tensor, "#B 1 RN L"] | None:
        """0 where a token may look, -inf where it may not; None where it may look everywhere.

        window: a layer's sliding window in tokens. repeats: how often to stack the rows, for folded query heads.
        device: the layer's, where layers are spread over several.
        """
        if window is not None and self.width <= window:
            window = None
        key = (window, repeats, device or self.device)
        if key not in self._biases:
            if repeats > 1 or key[2] != self.device:
                bias = self.bias(window)
                self._biases[key] = (
                    None if bias is None else bias.repeat(1, 1, repeats, 1).to(key[2])
                )
            else:
                self._biases[key] = self._make_bias(window)
        return self._biases[key]

    def bias_of_row(self, b: int, length: int, repeats: int) -> Float[Tensor, "RN L"] | None:
        """`bias` of one row's first `length` nodes over its own columns, stacked `repeats` times; None where it is all zeros."""
        if length == 1:
            return None
        if (b, repeats) not in self._by_row:
            ancestors = self.topology.ancestors.expand(len(self.starts), -1, -1)[
                b, :length, :length
            ]
            bias = torch.zeros(
                (length, self.starts[b] + length), dtype=self.dtype, device=self.device
            )
            bias[:, self.starts[b] :].masked_fill_(~ancestors, float("-inf"))
            self._by_row[b, repeats] = bias.repeat(repeats, 1)
        return self._by_row[b, repeats]

    @cached_property
    def roots(self) -> "AttentionPlan":
        """The same rows with their roots alone."""
        return AttentionPlan(
            self.starts,
            Topology.chain(1, self.device),
            max(self.starts) + 1,
            self.dtype,
            self.device,
        )

    def ends(self, device: torch.device) -> Int[Tensor, " B"]:
        """Columns of each row once the new tokens are written."""
        if device not in self._ends:
            self._ends[device] = upload(
                [start + self.num_nodes for start in self.starts], device, torch.int32
            )
        return self._ends[device]

    def full_bias(self, window: int | None = None) -> Float[Tensor, "B 1 N L"]:
        """`bias` with every row written out, zeros where nothing is masked."""
        shape = (len(self.starts), 1, self.num_nodes - self.first, self.width)
        bias = self._make_bias(window)
        return (
            torch.zeros(shape, dtype=self.dtype, device=self.device)
            if bias is None
            else bias.expand(shape)
        )

    def _make_bias(self, window: int | None) -> Float[Tensor, "#B 1 N L"] | None:
        uniform = all(start == self.starts[0] for start in self.starts)
        if self.num_nodes == 1 and uniform and window is None and self.width == self.starts[0] + 1:
            return None
        starts = upload(self.starts[:1] if uniform else self.starts, self.device)
        rows = max(len(starts), self.topology.parents.shape[0])
        node = (
            torch.arange(self.width, device=self.device) - starts[:, None]
        )  # [B L]: < 0 is the committed past
        hidden = ~self.topology.ancestors[:, self.first :]
        num_new = hidden.shape[1]
        if uniform:
            begin, end = self.starts[0], self.starts[0] + self.num_nodes
            bias = torch.zeros((rows, num_new, self.width), dtype=self.dtype, device=self.device)
            bias[:, :, begin:end].masked_fill_(hidden, float("-inf"))
            bias[:, :, end:] = float("-inf")
        else:
            table = F.pad(
                torch.zeros(hidden.shape, dtype=self.dtype, device=self.device),
                (1, 1),
                value=float("-inf"),
            )
            table[:, :, 0] = 0
            table[:, :, 1:-1].masked_fill_(hidden, float("-inf"))
            index = (node + 1).clamp_(0, self.num_nodes + 1)[:, None].expand(rows, num_new, -1)
            bias = table.expand(rows, -1, -1).gather(2, index)
        if window is not None:
            depth = self.topology.depth
            at = depth.expand(rows, -1).gather(
                1, node.clamp(0, self.num_nodes - 1).expand(rows, -1)
            )
            key_position = torch.where(node < 0, node, at)  # relative to the root
            bias.masked_fill_(
                depth[:, self.first :, None] - key_position[:, None] >= window, float("-inf")
            )
        return bias[:, None]


@dataclass(frozen=True)
class GivenBiases:
    """An attention plan of masks alone, one for each window, as a compiled graph makes them."""

    biases: dict[int | None, Float[Tensor, "S 1 N L"]]
    from_empty: bool = False
    packing: None = None

    @property
    def width(self) -> int:
        return self.biases[None].shape[-1]

    def bias(
        self, window: int | None = None, repeats: int = 1, device: torch.device | None = None
    ) -> Float[Tensor, "S 1 RN L"]:
        return self.biases[window if window in self.biases else None].repeat(1, 1, repeats, 1)


def slot_attention(
    module: torch.nn.Module,
    query: Float[Tensor, "_ Hq _ D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    attention_mask: Tensor | None,
    *,
    attention_plan: AttentionPlan | GivenBiases,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " Hq"] | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "_ _ Hq Dv"], None]:
    """The attention function that models call; `attention_mask` is ignored, the plan decides.

    Query heads that share a key head are folded into the rows of one matrix product, so keys and values are never
    copied per query head. Where the pass is packed, query and result are [1, Hq, T, D] and [1, T, Hq, Dv].
    """
    settings = scaling, sliding_window, softcap, s_aux
    packing = attention_plan.packing
    if packing is None:
        return _attend(query, key, value, attention_plan, *settings), None
    assert isinstance(attention_plan, AttentionPlan)
    windowed = sliding_window is not None and attention_plan.width > sliding_window
    if packing.alone is not None and softcap is None and s_aux is None and not windowed:
        return _attend_by_row(query, key, value, attention_plan, packing, scaling), None
    query = packing.unpack(query.transpose(1, 2)).transpose(1, 2)
    return packing.pack(_attend(query, key, value, attention_plan, *settings)), None


def _attend(
    query: Float[Tensor, "B Hq N D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    attention_plan: AttentionPlan | GivenBiases,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
    s_aux: Float[Tensor, " Hq"] | None,
) -> Float[Tensor, "B N Hq Dv"]:
    rows, num_heads, num_nodes = query.shape[:3]
    kv_heads = key.shape[1]
    group = num_heads // kv_heads
    plain = softcap is None and s_aux is None
    if (
        plain
        and isinstance(attention_plan, AttentionPlan)
        and _allows_flash(attention_plan, query, value)
    ):
        return _flash(query, key, value, attention_plan, scaling, sliding_window)
    windowed = sliding_window is not None and attention_plan.width > sliding_window
    if plain and attention_plan.from_empty and num_nodes > 1 and not windowed:
        out = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=group > 1
        )
        return out.transpose(1, 2)
    folded = query.reshape(rows, kv_heads, group * num_nodes, -1)
    bias = attention_plan.bias(sliding_window, group, query.device)
    if plain:
        out = F.scaled_dot_product_attention(folded, key, value, attn_mask=bias, scale=scaling)
    else:
        out = _explicit(folded, key, value, bias, scaling, softcap, s_aux, num_nodes)
    return out.view(rows, num_heads, num_nodes, -1).transpose(1, 2)


def _attend_by_row(
    query: Float[Tensor, "1 Hq T D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    plan: AttentionPlan,
    packing: Packing,
    scaling: float | None,
) -> Float[Tensor, "1 T Hq Dv"]:
    """A packed pass with `packing.alone` rows one by one, each over its own nodes and columns, and the other rows together."""
    num_heads, kv_heads = query.shape[1], key.shape[1]
    group = num_heads // kv_heads
    out = value.new_empty((1, query.shape[2], num_heads, value.shape[3]))
    assert packing.alone is not None
    if len(packing.alone) < len(packing.lengths):
        roots, width = query.index_select(2, packing.roots).permute(2, 1, 0, 3), plan.roots.width
        together = _attend(
            roots, key[:, :, :width], value[:, :, :width], plan.roots, scaling, None, None, None
        )
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
        out[0, begin : begin + num_nodes] = attended.view(num_heads, num_nodes, -1).transpose(0, 1)
    return out


def _explicit(
    query: Float[Tensor, "B Hkv GN D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    bias: Float[Tensor, "#B 1 GN L"] | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Float[Tensor, " Hq"] | None,
    num_nodes: int,
) -> Float[Tensor, "B Hkv GN Dv"]:
    """Written-out attention for what fused kernels lack: capped scores, and sink logits that only take probability."""
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if sinks is not None:
        sink = sinks.view(key.shape[1], -1).repeat_interleave(num_nodes, 1)[None, :, :, None]
        scores = torch.cat(
            [scores, sink.to(scores.dtype).expand(scores.shape[0], -1, -1, 1)], dim=-1
        )
    accurate = torch.float32 if scores.dtype.itemsize < 4 else scores.dtype
    probs = scores.softmax(-1, dtype=accurate).to(value.dtype)
    return probs[..., : key.shape[2]] @ value


def _allows_flash(plan: AttentionPlan, query: Tensor, value: Tensor) -> bool:
    if not (plan.flash and plan.topology.is_chain and query.is_cuda and query.dtype.itemsize == 2):
        return False
    return query.shape[-1] == value.shape[-1] <= 256


def _flash(
    query: Float[Tensor, "B Hq N D"],
    key: Float[Tensor, "B Hkv L D"],
    value: Float[Tensor, "B Hkv L Dv"],
    plan: AttentionPlan,
    scaling: float | None,
    window: int | None,
) -> Float[Tensor, "B N Hq Dv"]:
    from flash_attn import flash_attn_with_kvcache

    return flash_attn_with_kvcache(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        cache_seqlens=plan.ends(query.device),
        softmax_scale=scaling,
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
    )


def committed_positions(
    starts: Sequence[int], topology: Topology, device: torch.device, first: int = 0
) -> Int[Tensor, "B N"]:
    """Rotary position of the nodes from `first` on: the root stands right after the committed tokens, a child one after
    its parent."""
    begin = upload(starts, device)[:, None]
    if topology.is_chain:
        return begin + torch.arange(first, topology.num_nodes, device=device)
    return begin + topology.depth[:, first:].to(device)
