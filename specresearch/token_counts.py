"""How often each token occurs in a request, for penalties: kept on the device and updated."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from specresearch.request import RequestState
from specresearch.topology import upload


class TokenCounts:
    """Occurrences of every token in the prompt and in the output of each slot's request.

    Only what a request has grown by since the last time is brought to the device.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (2, num_slots, vocab_size)
        self._device = device
        self._table: Int[Tensor, "2 S V"] | None = None
        self._counted: dict[int, tuple[RequestState, int]] = {}  # tokens of each slot's request

    def of(
        self, rows: Sequence[RequestState], slots: Sequence[int]
    ) -> tuple[Int[Tensor, "B V"], Int[Tensor, "B V"]]:
        """Return the counts in prompt and output; those of rows without penalties mean nothing."""
        if self._table is None:
            self._table = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        self._update(self._table, rows, slots)
        prompts, outputs = self._table.index_select(1, upload(slots, self._device))
        return prompts, outputs

    def _update(
        self, table: Int[Tensor, "2 S V"], rows: Sequence[RequestState], slots: Sequence[int]
    ) -> None:
        _, num_slots, vocab_size = self._shape
        cells: list[int] = []  # one of the flattened table for every new token
        restarted: list[int] = []
        for row, slot in zip(rows, slots, strict=True):
            if not row.request.sampling.has_penalty:
                continue
            known, num_counted = self._counted.get(slot, (None, 0))
            if known is not row:
                restarted.append(slot)
                num_counted = 0
            for position in range(num_counted, len(row.tokens)):
                table_row = slot if position < row.num_prompt_tokens else num_slots + slot
                cells.append(table_row * vocab_size + row.tokens[position])
            self._counted[slot] = row, len(row.tokens)
        if restarted:
            table.index_fill_(1, upload(restarted, self._device), 0)
        if cells:
            index = upload(cells, self._device)
            table.flatten().index_add_(0, index, torch.ones_like(index, dtype=table.dtype))
