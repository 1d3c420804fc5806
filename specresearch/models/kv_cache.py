"""A preallocated cache of keys and values: S slots of C columns, one slot per running request.

Knows nothing of models. What lies past a slot's length is garbage that the next write replaces, so rolling back a
rejected draft costs nothing. Buffers start as zeros: a NaN would leak through a mask that only adds -inf.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specresearch.proposal import upload


@dataclass(frozen=True)
class Region:
    """Where one forward pass reads and writes: columns `starts[b] .. starts[b] + num_nodes - 1` of slot `slots[b]`.

    width: L, the number of columns read. flat_index: position of every column written in a buffer flattened to [S * C];
    None when all are, and the rows are neighbours that start at the same column, where a plain slice does. rows: index of the
    slots, None when they are neighbours.
    """

    slots: tuple[int, ...]
    starts: tuple[int, ...]
    num_nodes: int
    width: int
    rows: Int[Tensor, " B"] | None
    flat_index: Int[Tensor, " T"] | None


class SlotCache:
    """Buffers [S, C, heads, width] per layer, each on its layer's device.

    like: a cache of the same model, whose layers say the shapes; without it the first write of each layer does.
    """

    def __init__(
        self,
        num_slots: int,
        num_columns: int,
        device: torch.device,
        like: "SlotCache | None" = None,
    ) -> None:
        self.num_slots = num_slots
        self.num_columns = num_columns
        self.device = device
        layers = like.buffers if like is not None else ()
        self.buffers = [
            tuple(self._zeros(buffer.transpose(1, 2)) for buffer in pair) for pair in layers
        ]

    def region(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        num_nodes: int,
        fed: Int[Tensor, " T"] | None = None,
    ) -> Region:
        """Plan one pass. fed: the new columns that are written, as places in [B * num_nodes]; None: all of them.

        Raises IndexError when a row would run past its last column.
        """
        first = slots[0]
        width = max(starts) + num_nodes
        if width > self.num_columns:
            raise IndexError(
                f"column {width - 1} of a cache of {self.num_columns} columns; raise max_len"
            )
        if (
            self.device.type == "cuda"
            and any(starts)
            and not (num_nodes == 1 and len(set(starts)) == 1)
        ):
            # fused kernels copy a mask whose rows are not a multiple of 8 long, in every layer
            width = min(-(-width // 8) * 8, self.num_columns)
        neighbours = all(slot == first + i for i, slot in enumerate(slots))
        rows = None if neighbours else upload(slots, self.device)
        flat = None
        if fed is not None or not neighbours or any(start != starts[0] for start in starts):
            begin = torch.tensor(
                [s * self.num_columns + c for s, c in zip(slots, starts, strict=True)]
            )
            flat = (
                (begin[:, None] + torch.arange(num_nodes))
                .flatten()
                .to(self.device, non_blocking=True)
            )
            flat = flat if fed is None else flat[fed]
        return Region(tuple(slots), tuple(starts), num_nodes, width, rows, flat)

    def update(
        self,
        layer: int,
        region: Region,
        key: Float[Tensor, "_ H _ Dk"],
        value: Float[Tensor, "_ H _ Dv"],
    ) -> tuple[Float[Tensor, "B H L Dk"], Float[Tensor, "B H L Dv"]]:
        """Write the new rows of one layer and return all L columns, as views where the slots are neighbours."""
        while len(self.buffers) <= layer:
            self.buffers.append((self._zeros(key), self._zeros(value)))
        keys, values = self.buffers[layer]
        return self._write_and_read(keys, region, key), self._write_and_read(values, region, value)

    def _zeros(self, like: Float[Tensor, "_ H _ D"]) -> Float[Tensor, "S C H D"]:
        shape = (self.num_slots, self.num_columns, like.shape[1], like.shape[3])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def _write_and_read(
        self, buffer: Float[Tensor, "S C H D"], region: Region, new: Float[Tensor, "_ H _ D"]
    ) -> Float[Tensor, "B H L D"]:
        first, num_rows = region.slots[0], len(region.slots)
        if region.flat_index is None:
            start = region.starts[0]
            buffer[first : first + num_rows, start : start + region.num_nodes] = new.transpose(1, 2)
        else:
            flat = buffer.flatten(0, 1)
            flat.index_copy_(
                0, region.flat_index.to(flat.device), new.transpose(1, 2).flatten(0, 1)
            )
        if region.rows is None:
            return buffer[first : first + num_rows, : region.width].transpose(1, 2)
        return (
            buffer[:, : region.width].index_select(0, region.rows.to(buffer.device)).transpose(1, 2)
        )

    def move(self, slots: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy single columns inside their slots: column `sources[i]` of `slots[i]` to column `targets[i]`."""
        base = torch.tensor(slots) * self.num_columns
        source, target = base + torch.tensor(sources), base + torch.tensor(targets)
        for pair in self.buffers:
            for buffer in pair:
                flat = buffer.flatten(0, 1)
                moved = flat.index_select(0, source.to(flat.device, non_blocking=True))
                flat.index_copy_(0, target.to(flat.device, non_blocking=True), moved)

    def scrub(self, slots: Sequence[int]) -> None:
        """Zero whole slots: a NaN that stays behind would leak through the mask of the next request there."""
        for pair in self.buffers:
            for buffer in pair:
                buffer[list(slots)] = 0

    def emptied(self) -> "SlotCache":
        """The same layers without a slot."""
        return SlotCache(0, 0, self.device, like=self)

    @property
    def devices(self) -> set[torch.device]:
        return {self.device, *(keys.device for keys, _ in self.buffers)}

    @property
    def num_bytes(self) -> int:
        return sum(
            buffer.numel() * buffer.element_size() for pair in self.buffers for buffer in pair
        )

    @property
    def bytes_per_column(self) -> int:
        """Bytes of one token's keys and values over all layers; 0 before the first pass."""
        return self.num_bytes // (self.num_slots * self.num_columns)


def available_bytes(device: torch.device) -> int:
    """Memory that a new cache could take."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
