"""A preallocated cache of keys and values: S slots of C columns, one slot per running request.

It knows nothing of models. Whatever lies past a slot's length is overwritten by the next pass, so
rolling back a rejected draft costs nothing. Buffers start as zeros: a NaN would leak through a mask
that only adds -inf.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.proposal import upload


@dataclass(frozen=True)
class Region:
    """Where one forward pass reads and writes.

    Row b writes the columns from `starts[b]` to `starts[b] + num_nodes - 1` of slot `slots[b]`.

    Attributes:
        width: L, the number of columns read.
        rows: Index of the slots; None if they are adjacent.
        flat_index: Index of every written column in a buffer flattened to [S * C]; None if a plain
            slice does, as adjacent slots start at the same column and write all nodes.
        in_place: Attention reads the slots where they lie, so it gets all columns of all slots.
        gathered: Every column that is read, as `flat_index` is given, in place of `rows`.
    """

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    num_nodes: int
    width: int
    rows: Int[Tensor, " B"] | None
    flat_index: Int[Tensor, " T"] | None
    in_place: bool = False
    gathered: Int[Tensor, "B L"] | None = None


class SlotCache:
    """Buffers [S, C, heads, width] per layer, each on its layer's device.

    Args:
        like: A cache of the same model. Without it, each layer is allocated on its first write.
            With it, buffers of one shape share memory, so that one operation moves the columns of
            all layers.
        is_apart: Let no buffers share memory: a compiled graph copies every buffer that shares it
            with another one whole, in each pass.
    """

    def __init__(
        self,
        num_slots: int,
        num_columns: int,
        device: torch.device,
        like: "SlotCache | None" = None,
        *,
        is_apart: bool = False,
    ) -> None:
        self.num_slots = num_slots
        self.num_columns = num_columns
        self.device = device
        self.buffers: list[tuple[Tensor, Tensor]] = []
        self._stacks: list[Float[Tensor, "_ S C H D"]] = []  # what the buffers are parts of
        if like is None:
            return
        parts = [buffer for pair in like.buffers for buffer in pair]
        kinds = [
            (part.device, part.dtype, part.shape[2:], index if is_apart else 0)
            for index, part in enumerate(parts)
        ]
        shared: dict[tuple[torch.device, torch.dtype, torch.Size, int], Iterator[Tensor]] = {}
        for kind, number in Counter(kinds).items():
            device, dtype, shape, _ = kind
            stack = torch.zeros(
                (number, num_slots, num_columns, *shape), dtype=dtype, device=device
            )
            self._stacks.append(stack)
            shared[kind] = iter(stack)
        layers = iter([next(shared[kind]) for kind in kinds])
        self.buffers = list(zip(layers, layers, strict=True))

    def region(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        num_nodes: int,
        fed: Int[Tensor, " T"] | None = None,
        *,
        in_place: bool = False,
    ) -> Region:
        """Plan one pass.

        Args:
            fed: The nodes to write, as an index into [B * num_nodes]; None means all of them.

        Raises:
            IndexError: If a row would run past its last column.
        """
        width = max(starts) + num_nodes
        if width > self.num_columns:
            raise IndexError(
                f"column {width - 1} of a cache of {self.num_columns} columns; raise max_len"
            )
        is_uniform = len(set(starts)) == 1
        if self.device.type == "cuda" and any(starts) and not (num_nodes == 1 and is_uniform):
            # fused kernels copy a mask whose rows are not a multiple of 8 long, in every layer
            width = min(-(-width // 8) * 8, self.num_columns)
        is_adjacent = list(slots) == list(range(slots[0], slots[0] + len(slots)))
        flat = None
        if fed is not None or not is_adjacent or not is_uniform:
            begin = torch.tensor(slots) * self.num_columns + torch.tensor(starts)
            flat = (begin[:, None] + torch.arange(num_nodes)).flatten()
            flat = flat.to(self.device, non_blocking=True)
            flat = flat if fed is None else flat[fed]
        return Region(
            slots=tuple(slots),
            starts=tuple(starts),
            num_nodes=num_nodes,
            width=width,
            rows=None if is_adjacent or in_place else upload(slots, self.device),
            flat_index=flat,
            in_place=in_place,
        )

    def update(
        self,
        layer: int,
        region: Region,
        key: Float[Tensor, "_ H _ Dk"],
        value: Float[Tensor, "_ H _ Dv"],
    ) -> tuple[Float[Tensor, "B H L Dk"], Float[Tensor, "B H L Dv"]]:
        """Write the new rows of one layer; return what attention reads.

        That is all L columns, as views if slots are adjacent, or [1, H, S * C, D] if the region is
        read in place.
        """
        while len(self.buffers) <= layer:
            pair = self._zeros(key), self._zeros(value)
            self.buffers.append(pair)
            self._stacks.extend(buffer[None] for buffer in pair)
        keys, values = self.buffers[layer]
        return self._write_and_read(keys, region, key), self._write_and_read(values, region, value)

    def _zeros(self, like: Float[Tensor, "_ H _ D"]) -> Float[Tensor, "S C H D"]:
        shape = (self.num_slots, self.num_columns, like.shape[1], like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def _write_and_read(
        self, buffer: Float[Tensor, "S C H D"], region: Region, new: Float[Tensor, "_ H _ D"]
    ) -> Float[Tensor, "B H L D"]:
        if region.flat_index is None:
            first, num_rows, start = region.slots[0], len(region.slots), region.starts[0]
            buffer[first : first + num_rows, start : start + region.num_nodes] = new.transpose(1, 2)
        else:
            flat = buffer.flatten(0, 1)
            index = region.flat_index.to(flat.device)
            flat.index_copy_(0, index, new.transpose(1, 2).flatten(0, 1))
        if region.in_place:
            return buffer.flatten(0, 1).transpose(0, 1)[None]
        if region.gathered is not None:
            flat = buffer.flatten(0, 1).index_select(0, region.gathered.flatten())
            return flat.unflatten(0, region.gathered.shape).transpose(1, 2)
        columns = buffer[:, : region.width]
        if region.rows is None:
            first, num_rows = region.slots[0], len(region.slots)
            return columns[first : first + num_rows].transpose(1, 2)
        return columns.index_select(0, region.rows.to(buffer.device)).transpose(1, 2)

    def move(self, slots: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy column `sources[i]` of `slots[i]` to column `targets[i]` of the same slot."""
        base = np.array(slots) * self.num_columns
        columns = np.stack([base + sources, base + targets])
        index = {device: upload(columns, device) for device in self.devices}
        for stack in self._stacks:
            source, target = index[stack.device]
            flat = stack.flatten(1, 2)
            flat.index_copy_(1, target, flat.index_select(1, source))

    def copy(self, source: int, slot: int, num_columns: int) -> None:
        """Copy the first columns of one slot to another."""
        for stack in self._stacks:
            stack[:, slot, :num_columns] = stack[:, source, :num_columns]

    def scrub(self, slots: Sequence[int]) -> None:
        """Zero whole slots: a NaN left there would leak through the next request's mask."""
        for stack in self._stacks:
            stack.index_fill_(1, upload(slots, stack.device), 0)

    def emptied(self) -> "SlotCache":
        """Return a cache with the same layers and no slots."""
        return SlotCache(0, 0, self.device, like=self)

    @property
    def devices(self) -> set[torch.device]:
        return {self.device, *(stack.device for stack in self._stacks)}

    @property
    def num_bytes(self) -> int:
        return sum(stack.nbytes for stack in self._stacks)

    @property
    def bytes_per_column(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return self.num_bytes // (self.num_slots * self.num_columns)


def available_bytes(device: torch.device) -> int:
    """Return the memory that a new cache could take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
