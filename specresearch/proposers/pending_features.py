"""Features of committed tokens that an EAGLE head has not been fed, by slot, on the device."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specresearch.proposal import upload


class PendingFeatures:
    """Each slot's features since its last draft, one after another in a row of one buffer.

    Rows are added and taken for the whole batch at once. The buffer doubles when a slot goes
    without drafts for so long that it is full.
    """

    def __init__(self) -> None:
        self._buffer: Float[Tensor, "S C H"] | None = None
        self._counts: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def is_known(self, slot: int) -> bool:
        """Return whether a feature of this slot's request was ever added."""
        return slot in self._counts

    def count(self, slot: int) -> int:
        """Return how many features of a slot wait to be fed."""
        return self._counts.get(slot, 0)

    def add(
        self, slots: Sequence[int], features: Float[Tensor, "B D H"], counts: Sequence[int]
    ) -> None:
        """Append the first `counts[b]` features of every row; 0 leaves a slot unknown."""
        width = features.shape[1]
        begins = list(map(self.count, slots))
        buffer = self._reserve(max(slots) + 1, max(begins) + width, features)
        num_columns = buffer.shape[1]
        first = [slot * num_columns + begin for slot, begin in zip(slots, begins, strict=True)]
        index = upload(first, features.device)[:, None] + torch.arange(
            width, device=features.device
        )
        # What lies behind a row's count is overwritten by the next call.
        buffer.flatten(0, 1).index_copy_(0, index.flatten(), features.flatten(0, 1))
        for slot, begin, count in zip(slots, begins, counts, strict=True):
            if count or slot in self._counts:
                self._counts[slot] = begin + count

    def pop(self, slots: Sequence[int], width: int) -> Float[Tensor, "B W H"] | None:
        """Take the features of these slots, right-padded to `width`; None if there are none.

        The slots stay known. A slot without any features gets arbitrary finite ones.
        """
        for slot in slots:
            if slot in self._counts:
                self._counts[slot] = 0
        if self._buffer is None:
            return None
        return self._buffer[:, :width].index_select(0, upload(slots, self._buffer.device))

    def scrub(self, slots: Sequence[int]) -> None:
        """Clear rows that may hold NaN: padding must be finite."""
        if self._buffer is not None:
            self._buffer.index_fill_(0, upload(slots, self._buffer.device), 0)

    def drop(self, slots: Sequence[int]) -> None:
        """Forget these slots."""
        for slot in slots:
            self._counts.pop(slot, None)

    def _reserve(
        self, num_slots: int, num_columns: int, like: Float[Tensor, "B D H"]
    ) -> Float[Tensor, "S C H"]:
        """Return a buffer with so many slots and columns, that holds what was added."""
        old = self._buffer
        if old is not None and old.shape[0] >= num_slots and old.shape[1] >= num_columns:
            return old
        if old is None:
            self._buffer = like.new_zeros((num_slots, num_columns, like.shape[2]))
            return self._buffer
        shape = max(num_slots, old.shape[0]), max(num_columns, old.shape[1])
        if num_columns > old.shape[1]:
            shape = shape[0], 2 * num_columns
        self._buffer = like.new_zeros((*shape, like.shape[2]))
        self._buffer[: old.shape[0], : old.shape[1]] = old
        return self._buffer
