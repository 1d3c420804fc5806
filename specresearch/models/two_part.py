"""Attention in two parts: the committed prefix by a flash kernel, the nodes under a mask.

All nodes see the same prefix, so it needs no mask, and the kernel reads every slot in place. The
nodes see one another as `Topology.ancestors` says. Under a sliding window, deeper nodes see less of
the prefix; its columns that only some nodes see join the nodes. One softmax over the parts'
log-sum-exp weighs their outputs.

A chain is one causal call, unless long keys are split.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specresearch.models.flash_kernels import (
    FlashKernel,
    Sequences,
    attend_masked,
    mask_of,
    nothing_is_negative,
)
from specresearch.models.ragged import Packing
from specresearch.proposal import Topology

# Measured on an H100 with PyTorch's kernel: experiments/gpu
QUERIES_OF_BLOCK = 128  # that a kernel gives to one multiprocessor
FEW_QUERIES = 64  # of a block, so that a multiprocessor may have two
MIN_SPLIT = 256  # keys that pay for a block
MIN_SPLIT_CHAIN = 2048  # keys of a chain that pay for a mask and a merge


class _LayerKind(NamedTuple):
    """What layers that share their parts have in common."""

    window: int | None
    num_heads: int
    kv_heads: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class _Parts:
    """What the layers with one window attend to.

    Attributes:
        group: Query heads folded into the rows of the kernel's queries.
        num_splits: Stretches of each row; all rows come once for each split.
        columns: The part under a mask, an index into all columns of the cache; None if the
            kernel attends to everything.
        bias: -inf where a node does not see such a column, else 0.
    """

    sequences: Sequences
    group: int
    num_splits: int = 1
    columns: Int[Tensor, "B E"] | None = None
    bias: Float[Tensor, "B H GN E"] | None = None


@dataclass
class TwoPartPlan:
    """The attention of one pass over draft trees, shared by all layers.

    Attributes:
        bases: Where each row's slot begins, in all columns of the cache.
        starts: Columns already committed in each row. Both lie on the host, or on the device where
            a graph reads them.
        width: The most columns that a node may see, or an upper bound.
        first: Nodes of the tree that earlier passes have written; the others are the new tokens.
        packing: Set if the pass leaves padding out.
    """

    kernel: FlashKernel
    bases: Int[Tensor, " B"]
    starts: Int[Tensor, " B"]
    topology: Topology
    width: int
    first: int = 0
    packing: Packing | None = None
    _parts: dict[_LayerKind, _Parts] = field(default_factory=dict)

    def attend(
        self,
        query: Float[Tensor, "_ Hq _ D"],
        key: Float[Tensor, "1 Hkv SC D"],
        value: Float[Tensor, "1 Hkv SC D"],
        *,
        scaling: float | None,
        window: int | None,
        sinks: Float[Tensor, " Hq"] | None,
    ) -> Float[Tensor, "_ _ Hq D"]:
        """Attend for one layer.

        Args:
            key: All columns of all slots.
            sinks: Scores that only take probability.
        """
        if self.packing is not None:
            query = self.packing.unpack(query.transpose(1, 2)).transpose(1, 2)
        rows, num_heads, num_new, width = query.shape
        keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
        layer = _LayerKind(window, num_heads, keys.shape[1], query.dtype, query.device)
        if layer not in self._parts:
            self._parts[layer] = self._make_parts(layer)
        parts = self._parts[layer]
        folded = query.reshape(rows, num_heads // parts.group, parts.group * num_new, width)
        scale = width**-0.5 if scaling is None else scaling
        outputs, lse = self._attend_in_place(folded, keys, values, parts, scale)
        if sinks is not None:
            sinks = sinks.to(lse.dtype).repeat_interleave(num_new).view(1, *folded.shape[1:3])
        if parts.columns is not None and parts.bias is not None:
            tree_keys, tree_values = (
                cached.index_select(0, parts.columns.flatten())
                .unflatten(0, parts.columns.shape)
                .transpose(1, 2)
                for cached in (keys, values)
            )
            masked = attend_masked(folded, tree_keys, tree_values, parts.bias, scale)
            out = merge(outputs, lse, masked, sinks)
        elif parts.num_splits > 1 or sinks is not None:
            out = merge(outputs, lse, sinks=sinks)
        else:
            (out,) = outputs
        out = out.reshape(rows, num_heads, num_new, width).transpose(1, 2)
        out = out.to(query.dtype, memory_format=torch.contiguous_format)
        return out if self.packing is None else self.packing.pack(out)

    def _attend_in_place(
        self,
        query: Float[Tensor, "B _ R D"],
        keys: Float[Tensor, "SC Hkv D"],
        values: Float[Tensor, "SC Hkv D"],
        parts: _Parts,
        scale: float,
    ) -> tuple[Float[Tensor, "P B _ R D"], Float[Tensor, "P B _ R"]]:
        """Run the kernel; return output and log-sum-exp of every split."""
        rows, _, num_queries, _ = query.shape
        flat = query.transpose(1, 2).flatten(0, 1)
        if parts.num_splits > 1:
            flat = flat.repeat(parts.num_splits, 1, 1)
        out, lse = self.kernel.attend(flat, keys, values, parts.sequences, scale)
        out = out.unflatten(0, (parts.num_splits, rows, num_queries)).transpose(2, 3)
        lse = lse.unflatten(1, (parts.num_splits, rows, num_queries)).permute(1, 2, 0, 3)
        return out, lse

    def _make_parts(self, layer: _LayerKind) -> _Parts:
        window, num_heads, kv_heads, dtype, device = layer
        num_nodes, group = self.topology.num_nodes, num_heads // kv_heads
        num_queries = group * (num_nodes - self.first)
        longest = self.width if window is None else min(self.width, window + num_nodes)
        num_splits = 1
        # what splits keys itself also shares them among query heads
        is_causal = self.topology.is_chain and (num_queries > group or self.kernel.splits_keys)
        if not self.kernel.splits_keys and not (is_causal and longest < MIN_SPLIT_CHAIN):
            num_splits = num_splits_of(longest, len(self.starts) * kv_heads, num_queries, device)
        longest = -(-longest // num_splits)

        def first_seen(positions: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
            """Return the first column in the window of a token at each position."""
            if window is None:
                return torch.zeros_like(positions)
            return (positions - window + 1).clamp(min=0)

        starts, ends = self.starts, self.starts + num_nodes
        if self.topology.is_chain and not is_causal:  # the one new node sees its own column, too
            stretches = self._stretches(first_seen(ends - 1), ends, num_splits)
            sequences = Sequences.of(num_queries, *stretches, device, longest=longest)
            return _Parts(sequences, group, num_splits)
        if is_causal and num_splits == 1:
            stretches = self._stretches(first_seen(starts + self.first), ends, num_splits)
            sequences = Sequences.of(
                num_nodes - self.first,
                *stretches,
                device,
                longest=longest,
                causal=True,
                window=window,
            )
            return _Parts(sequences, group=1)
        num_partial = 0 if window is None else min(self.topology.max_depth, window - 1)
        stretches = self._stretches(first_seen(starts + num_partial), starts, num_splits)
        sequences = Sequences.of(num_queries, *stretches, device, longest=longest)
        columns, hidden = self._masked(window, num_partial, device)
        hidden = hidden.expand(len(starts), -1, -1, -1).repeat(1, 1, group, 1)
        return _Parts(sequences, group, num_splits, columns, mask_of(hidden, kv_heads, dtype))

    def _stretches(
        self, begins: Int[Tensor, " B"], ends: Int[Tensor, " B"], num_splits: int
    ) -> tuple[Int[Tensor, " _"], Int[Tensor, " _"]]:
        """Return begin and length of the stretches that split each row's columns evenly."""
        size = -(-(ends - begins) // num_splits)
        split = torch.arange(num_splits, device=begins.device)[:, None]
        pieces = torch.minimum(begins + split * size, ends)
        lengths = torch.minimum(size, ends - pieces)
        return (self.bases + pieces).flatten(), lengths.flatten()

    def _masked(
        self, window: int | None, num_partial: int, device: torch.device
    ) -> tuple[Int[Tensor, "B E"], Bool[Tensor, "#B 1 N E"]]:
        """Return the columns of the part under a mask and which node does not see which.

        Args:
            num_partial: Columns of the prefix that some nodes see, and others not.
        """
        both = torch.stack([self.bases, self.starts])
        base, start = both.to(device, non_blocking=True)[:, :, None]
        offset = torch.arange(self.topology.num_nodes, device=device)
        hidden = ~self.topology.ancestors[:, self.first :].to(device)
        if window is not None:
            depth = self.topology.depth.to(device)
            new_depth = depth[:, self.first :, None]
            hidden = hidden | (new_depth - depth[:, None] >= window)
            partial = torch.arange(num_partial, device=device) - (window - 1)
            offset = torch.cat([partial, offset])
            too_early = (start + partial < 0)[:, None] | (new_depth - partial >= window)
            rows = len(self.starts)
            hidden = torch.cat([too_early, hidden.expand(rows, -1, -1)], dim=2)
        return base + (start + offset).clamp(min=0), hidden[:, None]


def merge(
    outputs: Float[Tensor, "P B H R D"],
    lse: Float[Tensor, "P B H R"],
    masked: tuple[Float[Tensor, "B H R D"], Float[Tensor, "B H R"]] | None = None,
    sinks: Float[Tensor, "1 H R"] | None = None,
) -> Float[Tensor, "B H R D"]:
    """Join parts of one softmax, of which output and log-sum-exp are known.

    Args:
        lse: Infinite, of either sign, for a part that sees nothing.
        masked: One more part, which sees something in every row.
        sinks: Scores without a value.
    """
    num_parts = len(outputs)
    columns = [nothing_is_negative(lse).movedim(0, -1)]
    if masked is not None:
        columns.append(masked[1][..., None])
    if sinks is not None:
        columns.append(sinks[..., None].expand(*lse.shape[1:], 1))
    weights = torch.cat(columns, dim=-1).softmax(-1)
    weighted = weights[..., :num_parts].movedim(-1, 0)[..., None] * outputs
    out = weighted[0] if num_parts == 1 else weighted.sum(0)
    if masked is None:
        return out
    return torch.addcmul(out, weights[..., num_parts, None], masked[0])


def num_splits_of(longest: int, num_heads: int, num_queries: int, device: torch.device) -> int:
    """Return in how many stretches to read each row, so that all multiprocessors have work.

    Args:
        longest: Columns of the longest row.
        num_heads: Key heads of all rows.
        num_queries: Of each of them.
    """
    num_blocks = num_heads * -(-num_queries // QUERIES_OF_BLOCK)
    room = _multiprocessors(device) * (2 if num_queries <= FEW_QUERIES else 1)
    return max(1, min(room // num_blocks, longest // MIN_SPLIT))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
