"""Rows of unequal length in one pass: which go together when they are appended, and how padding is left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.proposal import upload

FEW_TOKENS = 16
MIN_FILL = 0.9
MAX_FILL = 0.8
MIN_SAVED_SHARE = 0.55  # of the scores of padded attention: so many less, on a CPU, and row by row is faster ...
MIN_SAVED = 256  # ... if they are also so many for each row, which is a call of its own


def append_passes(counts: Sequence[int], room: Sequence[int], chunk: int) -> Iterator[tuple[list[int], int, int]]:
    """Which rows to append together: (rows, first token, number of tokens) of each pass.

    Rows of similar length go together, so that long prompts do not pay for one another's padding, and a row is padded only
    as far as it has room.
    """
    remaining = sorted((row for row, count in enumerate(counts) if count), key=lambda row: -counts[row])
    while remaining:
        longest = counts[remaining[0]]
        alike = (row for row in remaining if counts[row] >= MIN_FILL * longest or longest <= FEW_TOKENS)
        group = {row for row in alike if room[row] >= longest or row == remaining[0]}
        remaining = [row for row in remaining if row not in group]
        for begin in range(0, longest, chunk):
            rows = sorted(row for row in group if counts[row] > begin)
            yield rows, begin, min(chunk, longest - begin)


@dataclass(frozen=True)
class Packing:
    """A ragged pass as one row without padding: which of the B x N nodes are fed, the first `lengths[b]` of each row.

    by_row: attention goes row by row, too; otherwise it sees all rows, padded.
    """

    lengths: tuple[int, ...]
    num_nodes: int
    index: Int[Tensor, " T"]
    by_row: bool

    @staticmethod
    def if_worthwhile(
        lengths: Sequence[int], starts: Sequence[int], num_nodes: int, device: torch.device, *, keep_full: bool = False
    ) -> "Packing | None":
        """None where little would be left out.

        lengths: nodes to feed of each row. starts: columns committed in each. keep_full: rows that are ragged in their columns
        only are no reason.
        """
        num_fed, num_padded = sum(lengths), len(lengths) * num_nodes
        num_scores = sum(length * (start + length) for length, start in zip(lengths, starts, strict=True))
        num_saved = num_padded * (max(starts) + num_nodes) - num_scores
        by_row = device.type == "cpu" and num_saved >= max(
            MIN_SAVED * len(lengths), MIN_SAVED_SHARE * (num_scores + num_saved)
        )
        if num_fed > MAX_FILL * num_padded and (keep_full or not by_row):
            return None
        nodes = [b * num_nodes + i for b, length in enumerate(lengths) for i in range(length)]
        return Packing(tuple(lengths), num_nodes, upload(nodes, device), by_row)

    def pack(self, values: Tensor) -> Tensor:
        """[B, N, ...] to [1, T, ...]."""
        return values.flatten(0, 1).index_select(0, self.index.to(values.device))[None]

    def unpack(self, values: Tensor) -> Tensor:
        """[1, T, ...] to [B, N, ...], zeros where nothing was fed."""
        num_rows = len(self.lengths)
        padded = values.new_zeros((num_rows * self.num_nodes, *values.shape[2:]))
        padded.index_copy_(0, self.index.to(values.device), values[0])
        return padded.view(num_rows, self.num_nodes, *values.shape[2:])
