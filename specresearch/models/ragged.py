"""Rows of unequal length in one pass: which go together, and when padding is left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.proposal import upload

FEW_TOKENS = 16
MIN_FILL = 0.9
MAX_FILL = 0.8
# cost of attention on a CPU, in units of one node attending to one column
READ_COST = 3  # of reading a column
CALL_COST = 1400


def append_passes(
    counts: Sequence[int], room: Sequence[int], chunk: int
) -> Iterator[tuple[list[int], int, int]]:
    """Choose which rows to append together; yield (rows, first token, number of tokens) per pass.

    Rows of similar length go together, so that long prompts do not pay for each other's padding.

    Args:
        counts: New tokens of each row.
        room: Columns that each row has left; padding never exceeds them.
        chunk: Most tokens of a row in one pass.
    """
    pending = [row for row, count in enumerate(counts) if count]
    pending.sort(key=lambda row: -counts[row])
    while pending:
        longest = counts[pending[0]]
        group = {pending[0]}
        for row in pending:
            is_similar = counts[row] >= MIN_FILL * longest or longest <= FEW_TOKENS
            if is_similar and room[row] >= longest:
                group.add(row)
        pending = [row for row in pending if row not in group]
        for begin in range(0, longest, chunk):
            rows = sorted(row for row in group if counts[row] > begin)
            yield rows, begin, min(chunk, longest - begin)


@dataclass(frozen=True)
class Packing:
    """A ragged pass as one row without padding.

    Attributes:
        lengths: Of each row's N nodes, the first `lengths[b]` are fed.
        index: The fed nodes in the flattened B x N.
        alone: Rows that attention takes one by one, each over its own columns; the others have one
            node each and go together. None: all rows go together, padded to the longest.
    """

    lengths: tuple[int, ...]
    num_nodes: int
    index: Int[Tensor, " T"]
    alone: frozenset[int] | None

    @staticmethod
    def if_worthwhile(
        lengths: Sequence[int],
        starts: Sequence[int],
        num_nodes: int,
        device: torch.device,
        *,
        keep_full: bool = False,
    ) -> "Packing | None":
        """Return None if packing would leave little out.

        Args:
            lengths: Nodes to feed of each row.
            starts: Columns committed in each row.
            keep_full: Do not pack rows that only differ in their committed columns.
        """
        alone = _alone(lengths, starts, num_nodes) if device.type == "cpu" else None
        if sum(lengths) > MAX_FILL * len(lengths) * num_nodes and (keep_full or alone is None):
            return None
        nodes: list[int] = []
        for b, length in enumerate(lengths):
            nodes.extend(range(b * num_nodes, b * num_nodes + length))
        return Packing(tuple(lengths), num_nodes, upload(nodes, device), alone)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Where each row begins in the packed one."""
        return (0, *accumulate(self.lengths[:-1]))

    @cached_property
    def roots(self) -> Int[Tensor, " B"]:
        return upload(self.begins, self.index.device, torch.long)

    def pack(self, values: Tensor) -> Tensor:
        """Turn [B, N, ...] into [1, T, ...]."""
        return values.flatten(0, 1).index_select(0, self.index.to(values.device))[None]

    def unpack(self, values: Tensor) -> Tensor:
        """Turn [1, T, ...] into [B, N, ...], with zeros where nothing was fed."""
        num_rows = len(self.lengths)
        padded = values.new_zeros((num_rows * self.num_nodes, *values.shape[2:]))
        padded.index_copy_(0, self.index.to(values.device), values[0])
        return padded.view(num_rows, self.num_nodes, *values.shape[2:])


def _alone(lengths: Sequence[int], starts: Sequence[int], num_nodes: int) -> frozenset[int] | None:
    """Return the rows that attention should take alone: none, those with drafts, or all."""

    def cost(num_nodes: int, num_columns: int, num_rows: int = 1) -> int:
        return CALL_COST + num_rows * num_columns * (READ_COST + num_nodes)

    num_rows, longest = len(lengths), max(starts)
    row_costs: list[int] = []
    for length, start in zip(lengths, starts, strict=True):
        row_costs.append(cost(length, start + length))
    drafting = frozenset(b for b, length in enumerate(lengths) if length > 1)
    costs = {
        None: cost(num_nodes, longest + num_nodes, num_rows),
        drafting: cost(1, longest + 1, num_rows) + sum(row_costs[b] for b in drafting),
        frozenset(range(num_rows)): sum(row_costs),
    }
    return min(costs, key=lambda rows: costs[rows])
