"""A model with a slot cache: memory for its slots, and passes that write to them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig

from specresearch.models.attention_plan import AttentionPlan, committed_positions
from specresearch.models.flash_kernels import FlashKernel
from specresearch.models.hf_adapter import SlotCacheView
from specresearch.models.kv_cache import SlotCache, available_bytes
from specresearch.models.pass_graphs import PassGraphs
from specresearch.models.ragged import Packing, append_passes
from specresearch.models.slots import Slots
from specresearch.models.two_part import TwoPartPlan
from specresearch.proposal import Topology, Verdict, upload


@dataclass(frozen=True)
class SlotChunk:
    """The tokens that one pass appends to some rows of a batch.

    Attributes:
        rows: Index of each row in the batch.
        slots: Slot of each row.
        begin: Tokens that earlier passes have appended.
        lengths: New tokens of each row.
        token_ids: The new tokens, right-padded.
        ends: Where the last token of a row stands in this chunk, by row of the batch: an index
            into the flattened `token_ids`. Rows that go on in a later pass are left out.
    """

    rows: list[int]
    slots: list[int]
    begin: int
    lengths: list[int]
    token_ids: Int[Tensor, "B N"]
    ends: dict[int, int]


class SlotModel(Slots):
    """Base of models whose keys and values lie in the slots of a preallocated cache.

    Attributes:
        max_len: Longest context in tokens.
        prefill_chunk: Tokens of one prompt processed per pass.
        bytes_per_token: Keys and values of one token over all layers.
        module: What holds its weights.
        layer_config: The configuration of its decoder layers.
        num_layers: How many there are.
        kernel: What attends to the prefix where attention has two parts; None elsewhere.
        windows: The sliding windows of its layers, None for full attention.
        passes: The graphs of its passes; None if they run without.
        cache: The slots' keys and values.
        view: The cache as the transformers library sees it.
        has_buffers_apart: Whether no buffers of the cache share memory, as a compiled graph wants.
    """

    name: str
    max_len: int
    prefill_chunk: int
    bytes_per_token: int
    device: torch.device
    dtype: torch.dtype
    module: nn.Module
    layer_config: PreTrainedConfig
    num_layers: int
    kernel: FlashKernel | None = None
    windows: Sequence[int | None] = ()
    passes: PassGraphs | None = None
    has_buffers_apart: bool = False

    def __init__(self) -> None:
        self._use_cache(SlotCache(0, 0, self.device))

    def _use_cache(self, cache: SlotCache) -> None:
        self.cache = cache
        self.view = SlotCacheView(cache)
        self._clear(cache.num_slots)
        if self.passes is not None:
            self.passes.graphs.clear()

    @property
    def cache_dtype(self) -> torch.dtype:
        """The precision of keys and values."""
        buffers = self.cache.buffers
        return buffers[0][0].dtype if buffers else self.dtype

    def free_cache(self) -> None:
        """Free the memory of all slots, none of which may be in use, until the next `allocate`."""
        self._use_cache(self.cache.emptied())

    def reserve(self, num_slots: int, num_tokens: int, *num_nodes: int) -> None:
        """Make room for `num_slots` requests of `num_tokens`; a large enough cache stays.

        Args:
            num_nodes: Sizes of trees that passes will often have; the largest must fit behind.

        Raises:
            MemoryError: If the cache cannot fit.
            RuntimeError: If the cache would have to grow while slots are in use.
        """
        spare = max(num_nodes, default=0)
        if self.passes is not None:
            spare = self.passes.add_sizes(*num_nodes)
        num_columns = num_tokens + spare
        if self.cache.num_slots >= num_slots and self.cache.num_columns >= num_columns:
            return
        if self.in_use:
            raise RuntimeError(
                "the cache cannot grow while requests are running; finish them first"
            )
        num_slots = max(num_slots, self.cache.num_slots)
        num_columns = max(num_columns, self.cache.num_columns)
        needed = self.bytes_per_token * num_slots * num_columns
        available = sum(map(available_bytes, self.cache.devices)) + self.cache.num_bytes
        if needed > available:
            raise MemoryError(
                f"the cache of {self.name} needs {needed:,} bytes ({num_slots} requests x "
                f"{num_columns} tokens x {self.bytes_per_token:,} bytes) and {available:,} are "
                "available; lower batch_size or target.max_len"
            )
        layers = self.cache.emptied()
        self._use_cache(layers)  # frees the old buffers before the new ones are allocated
        apart = self.has_buffers_apart
        self._use_cache(SlotCache(num_slots, num_columns, self.device, like=layers, is_apart=apart))

    @contextmanager
    def scratch_cache(self, num_slots: int, num_columns: int) -> Iterator[SlotCache]:
        """Use an empty cache for a trial; the model's own comes back afterwards, emptied."""
        cache, max_len = self.cache, self.max_len
        self.max_len = max(max_len, num_columns)
        self._use_cache(SlotCache(num_slots, num_columns, self.device))
        try:
            yield self.cache
        finally:
            self.max_len = max_len
            self._use_cache(cache)

    def _chunks(self, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> Iterator[SlotChunk]:
        """Split a ragged append into passes; each counts as committed once the next is asked for.

        Args:
            tokens: New tokens of each row, of any number.
        """
        counts = [len(row) for row in tokens]
        room = [self.cache.num_columns - self.lengths[slot] for slot in slots]
        for rows, begin, width in append_passes(counts, room, self.prefill_chunk):
            chunk_slots = [slots[row] for row in rows]
            lengths: list[int] = []
            padded: list[list[int]] = []
            ends: dict[int, int] = {}
            for i, row in enumerate(rows):
                part = list(tokens[row][begin : begin + width])
                lengths.append(len(part))
                padded.append(part + [0] * (width - len(part)))
                if counts[row] <= begin + width:
                    ends[row] = i * width + len(part) - 1
            yield SlotChunk(
                rows=rows,
                slots=chunk_slots,
                begin=begin,
                lengths=lengths,
                token_ids=upload(padded, self.device),
                ends=ends,
            )
            for slot, length in zip(chunk_slots, lengths, strict=True):
                self.lengths[slot] += length

    def _plan_pass(
        self,
        slots: Sequence[int],
        topology: Topology,
        first: int = 0,
        *,
        behind: int = 0,
        packing: Packing | None = None,
    ) -> tuple[AttentionPlan | TwoPartPlan, Int[Tensor, "B N"]]:
        """Point the cache's view at the nodes from `first` on; return their masks and positions.

        Args:
            first: Nodes of the tree that earlier passes have written.
            behind: Committed tokens that the tree begins before the end of each slot.
            packing: The nodes that are fed, where the pass leaves padding out.
        """
        starts = tuple(self.lengths[slot] - behind for slot in slots)
        new_starts = tuple(start + first for start in starts)
        fed = None if packing is None else packing.index
        region = self.cache.region(
            slots,
            new_starts,
            topology.num_nodes - first,
            fed,
            in_place=self.kernel is not None,
        )
        self.view.region = region
        if self.kernel is not None:
            plan = TwoPartPlan(
                self.kernel,
                torch.tensor(slots) * self.cache.num_columns,
                torch.tensor(starts),
                topology,
                width=max(starts) + topology.num_nodes,
                first=first,
                packing=packing,
            )
        else:
            plan = AttentionPlan(
                starts,
                topology,
                region.width,
                dtype=self.dtype,
                device=self.device,
                first=first,
                packing=packing,
            )
        positions = committed_positions(starts, topology, self.device, first)
        if region.width > self.max_len:
            # drafts beyond the last position are never accepted, but must stay in range
            positions = positions.clamp(max=self.max_len - 1)
        return plan, positions

    @torch.inference_mode()
    def commit(self, slots: Sequence[int], verdict: Verdict) -> None:
        """Move the accepted path to consecutive columns and drop everything behind it.

        Args:
            verdict: Lies on the host. A chain needs no move.
        """
        moves: list[tuple[int, int, int]] = []
        for slot, path in zip(slots, verdict.path.tolist(), strict=True):
            start = self.lengths[slot]
            kept = [node for node in path if node >= 0]
            moves += [(slot, start + node, start + i) for i, node in enumerate(kept) if node != i]
            self.lengths[slot] = start + len(kept)
        if moves:
            self.cache.move(*zip(*moves, strict=True))

    def _stack(self, last: dict[int, Tensor], num_rows: int) -> Float[Tensor, "B 1 _"]:
        """Stack a tensor of each row, in the order of the batch."""
        return torch.stack([last[row] for row in range(num_rows)])[:, None]

    def _empty(self, *shape: int) -> Float[Tensor, "..."]:
        return torch.empty(shape, dtype=self.dtype, device=self.device)
