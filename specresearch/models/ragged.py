"""Rows of unequal length in one pass: which go together when they are appended, and how padding is left out."""

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
# What costs in attention on a CPU, in units of a node's look at a column: reading a column, and a call.
READ, CALL = 3, 1400


def append_passes(
    counts: Sequence[int], room: Sequence[int], chunk: int
) -> Iterator[tuple[list[int], int, int]]:
    """Which rows to append together: (rows, first token, number of tokens) of each pass.

    Rows of similar length go together, so that long prompts do not pay for one another's padding, and a row is padded only
    as far as it has room.
    """
    remaining = sorted(
        (row for row, count in enumerate(counts) if count), key=lambda row: -counts[row]
    )
    while remaining:
        longest = counts[remaining[0]]
        alike = (
            row for row in remaining if counts[row] >= MIN_FILL * longest or longest <= FEW_TOKENS
        )
        group = {row for row in alike if room[row] >= longest or row == remaining[0]}
        remaining = [row for row in remaining if row not in group]
        for begin in range(0, longest, chunk):
            rows = sorted(row for row in group if counts[row] > begin)
            yield rows, begin, min(chunk, longest - begin)


@dataclass(frozen=True)
class Packing:
    """A ragged pass as one row without padding: which of the B x N nodes are fed, the first `lengths[b]` of each row.

    alone: rows that attention takes one by one, each over its own columns; the others, of one node each, go together. None: all
    rows go together, padded to the longest.
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
        """None where little would be left out.

        lengths: nodes to feed of each row. starts: columns committed in each. keep_full: rows that are ragged in their columns
        only are no reason.
        """
        alone = _alone(lengths, starts, num_nodes) if device.type == "cpu" else None
        if sum(lengths) > MAX_FILL * len(lengths) * num_nodes and (keep_full or alone is None):
            return None
        nodes = [b * num_nodes + i for b, length in enumerate(lengths) for i in range(length)]
        return Packing(tuple(lengths), num_nodes, upload(nodes, device), alone)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Where every row begins in the packed one."""
        return (0, *accumulate(self.lengths[:-1]))

    @cached_property
    def roots(self) -> Int[Tensor, " B"]:
        return upload(self.begins, self.index.device, torch.long)

    def pack(self, values: Tensor) -> Tensor:
        """[B, N, ...] to [1, T, ...]."""
        return values.flatten(0, 1).index_select(0, self.index.to(values.device))[None]

    def unpack(self, values: Tensor) -> Tensor:
        """[1, T, ...] to [B, N, ...], zeros where nothing was fed."""
        num_rows = len(self.lengths)
        padded = values.new_zeros((num_rows * self.num_nodes, *values.shape[2:]))
        padded.index_copy_(0, self.index.to(values.device), values[0])
        return padded.view(num_rows, self.num_nodes, *values.shape[2:])


def _alone(lengths: Sequence[int], starts: Sequence[int], num_nodes: int) -> frozenset[int] | None:
    """Which rows attention takes alone, so that it costs least: none, those with drafts, or all."""

    def cost(num_nodes: int, num_columns: int, num_rows: int = 1) -> int:
        return CALL + num_rows * num_columns * (READ + num_nodes)

    num_rows, longest = len(lengths), max(starts)
    each = [cost(length, start + length) for length, start in zip(lengths, starts, strict=True)]
    drafting = frozenset(b for b, length in enumerate(lengths) if length > 1)
    costs = {
        None: cost(num_nodes, longest + num_nodes, num_rows),
        drafting: cost(1, longest + 1, num_rows) + sum(each[b] for b in drafting),
        frozenset(range(num_rows)): sum(each),
    }
    return min(costs, key=lambda rows: costs[rows])
